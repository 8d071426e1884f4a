package node

import "path/filepath"

// DaemonImage is the image of guestwire-node by a name, as examples/kubernetes/Containerfile says. bin is the directory
// of the programs.
func DaemonImage(name, bin string) Image {
	i := Image{Name: name, Entrypoint: []string{"/guestwire-node"}, Files: map[string]File{}}
	for _, program := range []string{"guestwire-node", "guestwire", "guestwire-agent", "guestwire-launcher"} {
		i.Files["/"+program] = File{From: filepath.Join(bin, program)}
	}
	return i
}
