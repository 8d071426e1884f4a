package nstest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// OthersLink returns a symbolic link that an ordinary user has made in a directory of this user's. It leads to a
// directory of root's, with a file called file. The test fails if anything has been made or removed there.
func OthersLink(t *testing.T) (link string) {
	t.Helper()
	if os.Geteuid() != 0 || LauncherUID == 0 {
		t.Skip("no other user can be given a directory: the test is not root's, or its user namespace has one user")
	}
	Need(t)
	above := Dir(t)
	theirs, elsewhere := filepath.Join(above, "theirs"), filepath.Join(above, "elsewhere")
	link = filepath.Join(theirs, "link")
	err := errors.Join(os.Mkdir(theirs, 0o755), os.Mkdir(elsewhere, 0o755), os.WriteFile(filepath.Join(elsewhere, "file"), nil, 0o600),
		os.Symlink(elsewhere, link), os.Chown(theirs, LauncherUID, LauncherUID), os.Lchown(link, LauncherUID, LauncherUID))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if now, err := os.ReadDir(elsewhere); err != nil || len(now) != 1 || now[0].Name() != "file" {
			t.Errorf("where another user's link leads: %v, %v; want the file alone", now, err)
		}
	})
	return link
}
