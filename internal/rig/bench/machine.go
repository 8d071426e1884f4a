package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// describeMachine tells what the machine takes for what a Setup has many of: a system call that does nothing, and the first write to
// a page. The second one varies most by machine, as a hypervisor has page tables of its own.
func describeMachine() (text string, err error) {
	const calls, pages = 1000, 256
	var call, page []time.Duration
	memory, err := unix.Mmap(-1, 0, pages*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return "", fmt.Errorf("memory: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(memory)) }()
	for range 21 {
		begin := time.Now()
		for range calls {
			unix.Getppid()
		}
		call = append(call, time.Since(begin)/calls)
		if err := unix.Madvise(memory, unix.MADV_DONTNEED); err != nil {
			return "", fmt.Errorf("memory: %w", err)
		}
		begin = time.Now()
		for at := 0; at < len(memory); at += os.Getpagesize() {
			memory[at] = 1
		}
		page = append(page, time.Since(begin)/pages)
	}
	return fmt.Sprintf("A system call that does nothing takes %d ns here, the first write to a page %d ns.", median(call), median(page)), nil
}
