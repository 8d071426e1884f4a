package node

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestImage: the same image is the same bytes, and a directory comes before what is in it.
func TestImage(t *testing.T) {
	i := Image{Name: "guestwire.test/image:1", Entrypoint: []string{"/bin/program"}, Files: map[string]File{
		"/bin/program":   {Content: []byte("text")},
		"/bin/link":      {Link: "program"},
		"/etc/a/secret":  {Content: []byte("word"), Mode: 0o600},
		"/bin-not/other": {From: "image_test.go"},
	}}
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if err := i.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of one image differ")
	}
	layer, err := i.layer()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(first.String(), string(layer)) {
		t.Error("the layer is not in the archive")
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname)
	}
	want := []string{"drwxr-xr-x bin/ ", "drwxr-xr-x bin-not/ ", "-rwxr-xr-x bin-not/other ", "Lrwxr-xr-x bin/link program", "-rwxr-xr-x bin/program ",
		"drwxr-xr-x etc/ ", "drwxr-xr-x etc/a/ ", "-rw------- etc/a/secret "}
	if !slices.Equal(names, want) {
		t.Errorf("the layer has\n%q, want\n%q", names, want)
	}

	i.Files = map[string]File{"bin/../program": {}}
	if err := i.Write(io.Discard); err == nil || !strings.Contains(err.Error(), "bin/../program") {
		t.Errorf("a path that is not clean: %v", err)
	}
}
