package sample

import (
	"strings"
	"testing"
)

func Test(t *testing.T) {
	if Area(square{side: 3}) != 9 {
		t.Error("area")
	}
	if Adult(17) || !Adult(19) {
		t.Error("adult")
	}
	if n, err := Port("tcp", 80); n != 80 || err != nil {
		t.Error(n, err)
	}
	if n, err := Port("udp", 53); n != 53 || err != nil {
		t.Error(n, err)
	}
	if _, err := Port("sctp", 80); err == nil {
		t.Error("sctp")
	}
	if !strings.HasSuffix(Words("last"), "last") {
		t.Error("words")
	}
	if n, ok := Number("one"); n != 1 || !ok {
		t.Error(n, ok)
	}
}
