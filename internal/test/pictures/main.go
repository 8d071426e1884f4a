// Pictures draws the pictures of docs/pictures: each SVG from the D2 source beside it.
//
//	pictures D2 DIRECTORY
//
// D2 is the program. In what it draws, the colours of its theme give way to style.css, which has each role of
// classes.d2 light and dark. The variables of style.css become their values, as not each program that shows an SVG
// knows them: librsvg draws such a colour black. An SVG names the sum of all that it is made of.
package main

import (
	"crypto/sha256"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// classes is what the sources import. It has no picture of its own.
const classes = "classes.d2"

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: pictures D2 DIRECTORY")
	}
	sources, err := list(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	for _, source := range sources {
		svg, err := draw(os.Args[1], source)
		if err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(target(source), svg, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// list returns the sources of the directory's pictures.
func list(dir string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.d2"))
	var sources []string
	for _, path := range all {
		if filepath.Base(path) != classes {
			sources = append(sources, path)
		}
	}
	return sources, err
}

// target returns the path of a source's picture.
func target(source string) string { return strings.TrimSuffix(source, ".d2") + ".svg" }

// sum returns the comment by which a picture names what it was drawn from.
func sum(source string) (string, error) {
	h := sha256.New()
	for _, path := range []string{source, sibling(source, classes), sibling(source, "style.css")} {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		h.Write(text)
	}
	return fmt.Sprintf("<!-- make pictures: %s, sha256 %x -->", filepath.Base(source), h.Sum(nil)), nil
}

func sibling(path, name string) string { return filepath.Join(filepath.Dir(path), name) }

var (
	// D2's second style block has the theme; the first one the fonts.
	theme = regexp.MustCompile(`(?s)<style type="text/css"><!\[CDATA\[\.shape.*?</style>`)
	page  = regexp.MustCompile(`(<rect [^>]*) rx="[^"]*" fill="#FFFFFF" class=" fill-N7" `)
	size  = regexp.MustCompile(`^(<\?xml.*?\?><svg [^>]*)(viewBox="0 0 ([0-9]+) ([0-9]+)")`)
	font  = regexp.MustCompile(`font-family: "d2-[^"]*"`)
	name  = regexp.MustCompile(`\b(stroke|fill)-(N|B|AA|AB)[0-9]\b`)
	// Cells that only keep a place.
	hidden = regexp.MustCompile(`<g class="[^"]*" style='opacity:0\.000000'><g class="shape" ><rect [^>]*/></g></g>`)
)

// draw returns the SVG of a source.
func draw(d2, source string) ([]byte, error) {
	comment, err := sum(source)
	if err != nil {
		return nil, err
	}
	style, err := os.ReadFile(sibling(source, "style.css"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(d2, source, "-")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", d2, source, err, stderr.String())
	}
	svg := string(out)
	for _, expected := range []*regexp.Regexp{theme, page, size} {
		if n := len(expected.FindAllString(svg, -1)); n != 1 {
			return nil, fmt.Errorf("%s: %d times %s in what D2 drew", source, n, expected)
		}
	}
	css, err := plain(string(style))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	svg = theme.ReplaceAllLiteralString(svg, "<style>\n"+css+"</style>")
	svg = font.ReplaceAllString(svg, "$0, system-ui, sans-serif") // where a page's policy refuses the letters inside
	svg = page.ReplaceAllString(svg, `$1 rx="12" class="page" `)
	svg = size.ReplaceAllString(svg, `${1}width="$3" height="$4" $2`) // else a browser makes it as wide as the page
	svg = hidden.ReplaceAllString(svg, "")
	svg = name.ReplaceAllString(svg, "")
	return []byte(strings.TrimSpace(svg) + "\n" + comment + "\n"), nil
}

var (
	// The parts of style.css: a comment, the light values, the dark ones, the rules.
	styles   = regexp.MustCompile(`(?s)^(.*?\n)svg \{(.*?)\}\n@media (.*?) \{\n  svg \{(.*?)\}\n\}\n(.*)$`)
	value    = regexp.MustCompile(`(--[a-z0-9-]+): ([^;]+);`)
	variable = regexp.MustCompile(`var\((--[a-z0-9-]+)\)`)
)

// plain returns the style with values in place of variables: each rule with the light ones, and those that have a
// variable once more with the dark ones.
func plain(style string) (string, error) {
	part := styles.FindStringSubmatch(style)
	if part == nil {
		return "", fmt.Errorf("style.css: no match of %s", styles)
	}
	var unknown []string
	with := func(rules, values string) string {
		known := map[string]string{}
		for _, m := range value.FindAllStringSubmatch(values, -1) {
			known[m[1]] = m[2]
		}
		return variable.ReplaceAllStringFunc(rules, func(use string) string {
			name := variable.FindStringSubmatch(use)[1]
			if known[name] == "" {
				unknown = append(unknown, name)
			}
			return known[name]
		})
	}
	var dark strings.Builder
	for rule := range strings.Lines(part[5]) {
		if variable.MatchString(rule) {
			dark.WriteString("  " + rule)
		}
	}
	css := part[1] + with(part[5], part[2]) + "@media " + part[3] + " {\n" + with(dark.String(), part[4]) + "}\n"
	if len(unknown) > 0 {
		return "", fmt.Errorf("style.css: no value of %s", strings.Join(unknown, ", "))
	}
	return css, nil
}
