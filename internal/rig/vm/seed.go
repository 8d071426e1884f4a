package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
)

// seedMaker makes an ISO 9660 image, relative to the cache.
const seedMaker = "cloudinit/usr/bin/genisoimage"

// writeSeed writes the disk of cloud-init's data source NoCloud.
func writeSeed(image string, files map[string]string) error {
	dir := image + ".files"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	out, err := exec.Command(unpacked.Path(seedMaker), "-quiet", "-volid", "CIDATA", "-joliet", "-rock", "-output", image, dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("guest's seed: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
