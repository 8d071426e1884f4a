package main

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// drawing is a time line and its title.
type drawing struct {
	title string
	*timeline
}

// The picture's measures, in pixels.
const (
	labelWidth = 150
	plotWidth  = 830
	rowHeight  = 15
	headHeight = 44 // a title, and the phases below it in two rows
	footHeight = 26
)

// The picture follows the reader's colours, and has a page of its own, as the site that shows it may have others.
const pictureStyle = `<style>
.page { fill: #ffffff }
text { font: 11px sans-serif; fill: #24292f }
.title { font-weight: bold; font-size: 13px }
.phase, .grid { stroke: #8c959f; fill: none }
.grid { stroke-opacity: .35 }
.go { fill: #2f81f7 } .call { fill: #d4732a } .wait { fill: #8c959f } .gc { fill: #a371f7 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .page { fill: #0d1117 } }
</style>
`

// drawTimelines returns an SVG with a panel for each time line, all on the same scale.
func drawTimelines(list []drawing) []byte {
	var longest time.Duration
	for _, d := range list {
		longest = max(longest, d.total)
	}
	x := func(at time.Duration) float64 { return labelWidth + plotWidth*float64(at)/float64(longest) }
	lanes := allLanes()
	panel := headHeight + len(lanes)*rowHeight + footHeight
	var out bytes.Buffer
	width, height := labelWidth+plotWidth+20, 40+len(list)*panel
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">`+"\n", width, height, width, height)
	out.WriteString(pictureStyle + `<rect class="page" width="100%" height="100%"/>` + "\n")
	fmt.Fprintf(&out, `<text x="10" y="20">One Setup of each binding, in milliseconds. While a system call runs (orange), Setup waits for that part of the kernel.</text>`+"\n")
	for i, d := range list {
		top := 40 + i*panel
		fmt.Fprintf(&out, `<text class="title" x="10" y="%d">%s: %.2f ms</text>`+"\n", top+14, d.title, ms(d.total))
		bottom := top + headHeight + len(lanes)*rowHeight
		step := gridStep(longest)
		for at := time.Duration(0); at <= longest; at += step {
			fmt.Fprintf(&out, `<path class="grid" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", x(at), top+headHeight, bottom, x(at), bottom+13, ms(at))
		}
		for j, p := range d.phases() {
			fmt.Fprintf(&out, `<path class="phase" d="M%.1f %dv-5H%.1fv5"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
				x(p.begin), top+headHeight-1, x(p.end), (x(p.begin)+x(p.end))/2, top+headHeight-9-j%2*11, p.phase)
		}
		for j, lane := range lanes {
			y := top + headHeight + j*rowHeight
			class := map[string]string{goLane: "go", waitLane: "wait", gcLane: "gc"}[lane]
			if class == "" {
				class = "call"
			}
			fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n"+`<path class="%s" d="`, labelWidth-8, y+11, lane, class)
			const least = 0.5 // of a bar, and of a gap
			begin, end := math.Inf(-1), math.Inf(-1)
			bar := func() {
				if !math.IsInf(begin, 0) {
					fmt.Fprintf(&out, "M%.1f %dH%.1fv%dH%.1fz", begin, y+2, max(end, begin+least), rowHeight-4, begin)
				}
			}
			for _, s := range d.spans {
				if s.lane != lane {
					continue
				}
				if x(s.begin) > end+least {
					bar()
					begin = x(s.begin)
				}
				end = x(s.end)
			}
			bar()
			out.WriteString(`"/>` + "\n")
		}
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// gridStep is the distance of the lines of time: at most twelve of them.
func gridStep(longest time.Duration) time.Duration {
	for step := 250 * time.Microsecond; ; step *= 2 {
		if longest/step <= 12 {
			return step
		}
	}
}

// phases returns the phases, each from its first system call to its last.
func (t *timeline) phases() []span {
	var list []span
	for _, s := range t.spans {
		if s.phase == "" {
			continue
		}
		if n := len(list); n > 0 && list[n-1].phase == s.phase {
			list[n-1].end = s.end
			continue
		}
		list = append(list, s)
	}
	return list
}
