package commandline

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// NotStarted adds to the error of a program's start what the program's file shows of the cause, and the way out.
func NotStarted(err error) error {
	var start *fs.PathError
	if !errors.As(err, &start) || start.Op != "fork/exec" {
		return err
	}
	size, _ := unix.Getxattr(start.Path, "security.capability", nil)
	var on unix.Statfs_t
	switch {
	case errors.Is(err, unix.EPERM) && size > 0:
		return fmt.Errorf("%w: the file has capabilities, which a command without privileges cannot get: setcap -r %q", err, start.Path)
	case errors.Is(err, unix.EACCES) && unix.Statfs(start.Path, &on) == nil && on.Flags&unix.ST_NOEXEC != 0:
		return fmt.Errorf("%w: its file system is mounted with noexec: mount -o remount,exec $(findmnt -no TARGET -T %q), or put the program elsewhere", err, start.Path)
	}
	return err
}
