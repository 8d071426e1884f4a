// Package sample has tests with known holes, and a place for each kind of mutation.
package sample

import (
	"errors"
	"strings"
)

var known = map[string]int{"one": 1, "two": 2}

type shape interface{ area() int }

type square struct{ side int }

type oblong struct{ a, b int }

func (s square) area() int { return s.side * s.side }
func (o oblong) area() int { return o.a * o.b }

// Area is tested for squares only.
func Area(s shape) int {
	switch s := s.(type) {
	case square:
		return s.area()
	case oblong:
		return s.area()
	}
	return -1
}

// Adult is tested at 17 and 19, and not at 18.
func Adult(age int) bool { return age >= 18 }

// Port is never tested with an error of the port, nor with 0.
func Port(protocol string, port int) (int, error) {
	switch protocol {
	case "tcp", "udp":
	default:
		return 0, errors.New("no such protocol")
	}
	if port < 0 || port > 65535 {
		return 0, errors.New("no such port")
	}
	return port, nil
}

// Words is tested for its last word only.
func Words(last string) string {
	list := []string{"a", "list"}
	list = append(list, "of", "words")
	list = append(list, last)
	return strings.Join(list, " ")
}

// Number is tested with one.
func Number(name string) (int, bool) {
	n, ok := known[name]
	return n, ok
}
