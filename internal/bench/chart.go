package bench

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
)

// Measures of the chart, in pixels.
const (
	chartWidth  = 960
	labelWidth  = 330 // the names, to the left of the bars
	valueWidth  = 90  // the figures, to the right
	barHeight   = 18
	rowHeight   = 32
	headHeight  = 64
	footHeight  = 44
	barsWidth   = chartWidth - labelWidth - valueWidth
	tallestTick = 7 // of the whiskers, up and down from the bar's middle
)

// Chart draws how long each way takes as SVG: one bar to the median, a line on to
// the 99th percentile, on a logarithmic scale. What has no time is left out.
func (r *Report) Chart() []byte {
	var rows []Row
	for _, row := range r.Rows {
		if row.Done.P50 > 0 && row.MBPerSecond == 0 {
			rows = append(rows, row)
		}
	}
	scale := newLogScale(rows)
	height := headHeight + rowHeight*len(rows) + footHeight
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="13">`+"\n", chartWidth, height, chartWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", chartWidth, height)
	text(&b, 16, 26, "start", "#1f2328", `font-size="16" font-weight="600"`, "From the call to its end, median and 99th percentile")
	text(&b, 16, 46, "start", "#59636e", "", fmt.Sprintf("logarithmic; %s, %d CPUs, RuntimeClass %s, %s",
		r.Setting.Began.UTC().Format("2006-01-02"), r.Setting.CPUs, r.Setting.RuntimeClass, r.Setting.Version))
	scale.grid(&b, headHeight, height-footHeight)
	for i, row := range rows {
		scale.bar(&b, row, headHeight+rowHeight*i)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// logScale maps milliseconds to pixels. It spans whole decades.
type logScale struct{ low, high int } // exponents of ten

func newLogScale(rows []Row) logScale {
	s := logScale{low: 0, high: 1}
	for i, row := range rows {
		low := int(math.Floor(math.Log10(row.Done.P50)))
		high := int(math.Ceil(math.Log10(max(row.Done.P99, row.Done.P50))))
		if i == 0 {
			s = logScale{low, max(high, low+1)}
		}
		s.low, s.high = min(s.low, low), max(s.high, high)
	}
	return s
}

// x is where a time lies.
func (s logScale) x(ms float64) float64 {
	return labelWidth + barsWidth*(math.Log10(ms)-float64(s.low))/float64(s.high-s.low)
}

// grid draws a line and a label for each decade.
func (s logScale) grid(b *bytes.Buffer, top, bottom int) {
	for e := s.low; e <= s.high; e++ {
		x := s.x(math.Pow10(e))
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#d1d9e0"/>`+"\n", x, top, x, bottom)
		text(b, x, float64(bottom+18), "middle", "#59636e", "", duration(math.Pow10(e)))
	}
}

// bar draws one row.
func (s logScale) bar(b *bytes.Buffer, row Row, top int) {
	middle := float64(top) + rowHeight/2
	start, end, whisker := s.x(math.Pow10(s.low)), s.x(row.Done.P50), s.x(max(row.Done.P99, row.Done.P50))
	text(b, labelWidth-10, middle+4.5, "end", "#1f2328", "", row.Name)
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" rx="2" fill="%s"/>`+"\n", start, middle-barHeight/2, max(end-start, 1), barHeight, colour(row.Key))
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#1f2328"/>`+"\n", end, middle, whisker, middle)
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#1f2328"/>`+"\n", whisker, middle-tallestTick, whisker, middle+tallestTick)
	text(b, whisker+8, middle+4.5, "start", "#1f2328", `font-weight="600"`, duration(row.Done.P50))
}

// colour tells the broker's own ways from what they are compared with.
func colour(k Key) string {
	switch k {
	case Job, ClaimExec, PeerFirst, PeerLater, PeerBackToBack, BareEcho:
		return "#9198a1"
	default:
		return "#1a7f37"
	}
}

// duration prints milliseconds in the unit that suits them.
func duration(ms float64) string {
	switch {
	case ms >= 1000:
		return short(ms/1000) + " s"
	case ms >= 1:
		return short(ms) + " ms"
	default:
		return short(ms*1000) + " µs"
	}
}

// text writes one piece of text; more holds further attributes.
func text(b *bytes.Buffer, x, y float64, anchor, fill, more, s string) {
	if more != "" {
		more = " " + more
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s"%s>`, x, y, anchor, fill, more)
	_ = xml.EscapeText(b, []byte(s)) // into memory
	b.WriteString("</text>\n")
}
