package container

import (
	"os"
	"testing"
	"time"
)

func TestPodImage(t *testing.T) {
	begin := time.Now()
	archive := ExportPodImage(t)
	i, err := os.Stat(archive)
	t.Log(time.Since(begin), i.Size(), err)
	out, _ := os.ReadFile(archive)
	os.WriteFile("/tmp/vmpod-try/vm.tar", out, 0o644)
}
