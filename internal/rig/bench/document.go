package main

import (
	"fmt"
	"os"
	"strings"
)

func mark(name string) string { return "<!-- bench " + name + " -->\n" }

// checkPart refuses a document that has no place for the part, before it is measured. The name can be empty: for all parts.
func checkPart(path, name string) error {
	text, err := os.ReadFile(path)
	if err == nil && name != "" && !strings.Contains(string(text), mark(name)) {
		err = fmt.Errorf("%s has no line %s, so there is no table to replace", path, strings.TrimSpace(mark(name)))
	}
	return err
}

// replacePart replaces what a document has of a part: the lines in the fence that follows the line <!-- bench NAME -->. A
// document without that line stays as it is.
func replacePart(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), mark(name))
	if !ok {
		return nil
	}
	const fence = "```\n"
	_, inside, ok1 := strings.Cut(rest, fence)
	_, tail, ok2 := strings.Cut(inside, fence)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s: no fence after <!-- bench %s -->", path, name)
	}
	return os.WriteFile(path, []byte(head+mark(name)+fence+strings.TrimSpace(text)+"\n"+fence+tail), 0o644)
}
