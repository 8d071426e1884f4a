// Command archive writes the image of guestwire-node as an OCI archive, which container engines import.
//
//	archive NAME BIN FILE
//
// NAME is the image's reference, BIN the directory of the programs.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/guestwire/guestwire/internal/rig/node"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "archive NAME BIN FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

func write(name, bin, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(node.DaemonImage(name, bin).Write(f), f.Close())
}
