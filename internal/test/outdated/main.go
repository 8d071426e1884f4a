// Outdated lists the requirements of Go modules that have a newer version.
//
//	outdated [-for DURATION] MODULE...
//
// MODULE is a directory with a go.mod. What it requires directly and its tools' modules are asked for, and of the first
// one, the library, all that its importers get. Each module is asked for alone, because "go list -m -u all" fails as a
// whole where the proxy refuses one. A line a module: its path, the version here, the newest one, and the newest one's
// Go if that is newer than go.mod's. The last line counts. The exit code is 1 if a go.mod cannot be read, or if
// not one of the modules has answered.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/version"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// asks is how many modules are asked for at once.
const asks = 8

func main() {
	log.SetFlags(0)
	limit := flag.Duration("for", 10*time.Minute, "ask no longer than this")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	if err := list(ctx, os.Stdout, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// mod is what "go mod edit -json" prints.
type mod struct {
	Go      string
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct{ Old struct{ Path string } }
	Tool    []struct{ Path string }
}

// requirement is a module in one of its versions.
type requirement struct{ path, version string }

func (r requirement) String() string { return r.path + "@" + r.version }

// errNoAnswer says that nothing is known: it is no sign that all is new.
var errNoAnswer = errors.New("nothing is known: not one requirement could be asked for; set GOPROXY to a proxy that answers, or make FOR longer")

// list prints what is outdated. Two modules that require different versions of a third one make two lines.
func list(ctx context.Context, w io.Writer, dirs []string) error {
	required := map[requirement]string{} // with the Go of its go.mod
	for i, dir := range dirs {
		m, err := read(dir)
		if err != nil {
			return err
		}
		for _, r := range m.Require {
			replaced := slices.ContainsFunc(m.Replace, func(p struct{ Old struct{ Path string } }) bool { return p.Old.Path == r.Path })
			tool := slices.ContainsFunc(m.Tool, func(t struct{ Path string }) bool { return strings.HasPrefix(t.Path+"/", r.Path+"/") })
			if !replaced && (i == 0 || !r.Indirect || tool) {
				required[requirement{r.Path, r.Version}] = m.Go
			}
		}
	}

	all := slices.SortedFunc(maps.Keys(required), func(a, b requirement) int { return cmp.Compare(a.String(), b.String()) })
	answers := make([]answer, len(all))
	var wg sync.WaitGroup
	turns := make(chan struct{}, asks)
	for i, r := range all {
		wg.Go(func() {
			turns <- struct{}{}
			answers[i] = newest(ctx, r)
			<-turns
		})
	}
	wg.Wait()

	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var outdated, refused, late int
	for i, r := range all {
		a := answers[i]
		switch {
		case a.err != nil && ctx.Err() != nil:
			late++
		case a.err != nil:
			refused++
			fmt.Fprintf(table, "%s\t%s\tcannot be asked for: %v\n", r.path, r.version, a.err)
		case a.version != "":
			outdated++
			fmt.Fprintf(table, "%s\t%s\t%s", r.path, r.version, a.version)
			if version.Compare("go"+a.goVersion, "go"+required[r]) > 0 {
				fmt.Fprintf(table, "\tneeds Go %s", a.goVersion)
			}
			fmt.Fprintln(table)
		}
	}
	fmt.Fprintf(table, "%d of %d requirements have a newer version", outdated, len(all))
	if refused > 0 {
		fmt.Fprintf(table, ", %d cannot be asked for", refused)
	}
	if late > 0 {
		fmt.Fprintf(table, ", %d have not answered in time", late)
	}
	fmt.Fprintln(table)
	if err := table.Flush(); err != nil {
		return err
	}
	if len(all) > 0 && refused+late == len(all) {
		return errNoAnswer
	}
	return nil
}

// read returns a directory's go.mod.
func read(dir string) (m mod, err error) {
	cmd := exec.Command("go", "mod", "edit", "-json", filepath.Join(dir, "go.mod"))
	out, err := cmd.Output()
	if err != nil {
		return m, explain(err)
	}
	return m, json.Unmarshal(out, &m)
}

// answer is the newest version of a module, and the Go that this version needs; version is empty if the one here is the
// newest.
type answer struct {
	version, goVersion string
	err                error
}

// newest asks twice: only an exact query has an error where the module is not to be had, and only -u compares versions.
func newest(ctx context.Context, r requirement) answer {
	var latest struct{ Version, GoVersion string }
	if err := ask(ctx, &latest, r.path+"@latest"); err != nil || latest.Version == r.version {
		return answer{err: err}
	}
	var here struct{ Update struct{ Version string } }
	err := ask(ctx, &here, "-u", r.String())
	return answer{here.Update.Version, latest.GoVersion, err}
}

// ask calls "go list -m" where no go.mod is.
func ask(ctx context.Context, answer any, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-m", "-json"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	cmd.WaitDelay = time.Second // for a program that go has started
	out, err := cmd.Output()
	if err != nil {
		return explain(err)
	}
	return json.Unmarshal(out, answer)
}

// explain adds what a program has written to stderr, on one line.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return errors.New(strings.Join(strings.Fields(string(exit.Stderr)), " "))
	}
	return err
}
