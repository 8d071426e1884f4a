package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// chooser is the package of the overlay that all mutants ask. What a test reaches is noted in shared memory: a system
// call would change what tests count.
const chooser = `package mutant

import (
	"os"
	"strconv"
	"syscall"
)

var (
	active, _ = strconv.Atoi(os.Getenv("GUESTWIRE_MUTANT"))
	reached   = open(os.Getenv("GUESTWIRE_MUTANTS_REACHED"))
)

func open(name string) []byte {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, _ := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return data
}

func On(n int) bool {
	if reached != nil {
		reached[n] = 1
	}
	return n == active
}

func More[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr](n int, v T) T {
	if On(n) {
		return v + 1
	}
	return v
}
`

// writeOverlay writes the changed files below dir, and returns the file for -overlay.
func writeOverlay(dir string, mutants []mutant) (string, error) {
	replace := map[string]string{}
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	write := func(name, text string) error {
		copied := filepath.Join(dir, "overlay", name)
		replace[filepath.Join(root, name)] = copied
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return err
		}
		return os.WriteFile(copied, []byte(text), 0o644)
	}
	if err := write("internal/mutant/mutant.go", chooser); err != nil {
		return "", err
	}
	edits := map[string][]edit{}
	for _, m := range mutants {
		for _, e := range m.edits {
			e.text = strings.Replace(e.text, "(%d", fmt.Sprintf("(%d", m.Number), 1)
			edits[m.File] = append(edits[m.File], e)
		}
	}
	for name, edits := range edits {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
		for _, e := range edits {
			text = slices.Concat(text[:e.from], []byte(e.text), text[e.to:])
		}
		changed := string(text)
		at := strings.Index("\n"+changed, "\npackage ")
		end := at + strings.IndexByte(changed[at:], '\n')
		changed = changed[:end] + `; import "github.com/guestwire/guestwire/internal/mutant"` + changed[end:]
		if err := write(name, changed); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, data, 0o644)
}
