package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// Image is a container image of files, for want of a registry.
type Image struct {
	// Name is the reference by which pods name the image, with a registry and a tag: guestwire.test/pause:1.
	Name string
	// Entrypoint is the program with its arguments.
	Entrypoint []string
	// Env are variables, NAME=VALUE.
	Env []string
	// Files are the files by their absolute paths. Directories above them are made.
	Files map[string]File
}

// File is a file of an image, owned by root. One of the fields From, Link and Content says what it is.
type File struct {
	From    string // path of a regular file of this machine
	Link    string // target of a symbolic link
	Content []byte
	Mode    int64 // permissions; 0: 0755
}

// Write writes the image as an archive in the OCI image layout, as "ctr images import" reads it. The same image gives
// the same bytes.
//
// https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
func (i Image) Write(w io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	blobs := map[string][]byte{}
	add := func(kind string, content []byte) map[string]any {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		blobs["blobs/sha256/"+sum] = content
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sum, "size": len(content)}
	}
	addJSON := func(kind string, v any) map[string]any {
		text, marshalErr := json.Marshal(v)
		if marshalErr != nil {
			err = marshalErr
		}
		return add(kind, text)
	}
	layers := add("layer.v1.tar", layer)
	config := addJSON("config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Env": append([]string{"PATH=/bin"}, i.Env...)},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layers["digest"]}},
	})
	manifest := addJSON("manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []any{layers},
	})
	manifest["annotations"] = map[string]string{"io.containerd.image.name": i.Name}
	index, indexErr := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	if err == nil {
		err = indexErr
	}
	if err != nil {
		return err
	}
	blobs["index.json"] = index
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	files := map[string]File{}
	for name, content := range blobs {
		files["/"+name] = File{Content: content, Mode: 0o644}
	}
	return writeTar(w, files)
}

func (i Image) layer() ([]byte, error) {
	var b bytes.Buffer
	err := writeTar(&b, i.Files)
	return b.Bytes(), err
}

// writeTar writes files in the order of their paths, each directory before what is in it.
func writeTar(w io.Writer, files map[string]File) error {
	names := map[string]bool{}
	for name := range files {
		if !path.IsAbs(name) || path.Clean(name) != name {
			return fmt.Errorf("%q is no clean absolute path", name)
		}
		for name != "/" {
			names[name] = true
			name = path.Dir(name)
		}
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	archive := tar.NewWriter(w)
	for _, name := range sorted {
		header := &tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		file, ok := files[name]
		content := file.Content
		if file.Mode != 0 {
			header.Mode = file.Mode
		}
		switch {
		case !ok:
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		case file.Link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, file.Link
		default:
			header.Typeflag = tar.TypeReg
			if file.From != "" {
				var err error
				if content, err = os.ReadFile(file.From); err != nil {
					return err
				}
			}
			header.Size = int64(len(content))
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// Names of the images.
const (
	PauseImage    = "guestwire.test/pause:1"
	BusyboxImage  = "guestwire.test/busybox:1"
	LauncherImage = "guestwire.test/launcher:1"
)

// Busybox is an image with busybox by the names of its applets in /bin. It is also the start of others.
func Busybox() (Image, error) {
	program := unpacked.Path("busybox/bin/busybox")
	out, err := exec.Command(program, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("%s --list: %w", program, err)
	}
	i := Image{Name: BusyboxImage, Entrypoint: []string{"/bin/sh"}, Files: map[string]File{"/bin/busybox": {From: program}}}
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			i.Files["/bin/"+applet] = File{Link: "busybox"}
		}
	}
	return i, nil
}

// Pause is the image of a sandbox's first process. It does not reap: pods whose containers share a PID namespace need
// another one.
func Pause() Image {
	return Image{Name: PauseImage, Entrypoint: []string{"/bin/busybox", "sleep", "inf"},
		Files: map[string]File{"/bin/busybox": {From: unpacked.Path("busybox/bin/busybox")}}}
}
