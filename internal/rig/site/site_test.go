// Package site_test builds the site.
package site_test

import (
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestSite: README and docs become a site in which each link finds its page. make site also asks a browser.
func TestSite(t *testing.T) {
	nstest.Need(t, "node", "npm")
	site := filepath.Join(nstest.Root(t), "site")
	nstest.Run(t, "npm", "--prefix", site, "ci", "--no-audit", "--no-fund")
	nstest.Run(t, "npm", "--prefix", site, "run", "build")
	nstest.Run(t, "node", "--test", filepath.Join(site, "links.test.mjs"))
}
