package bench

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	// barWidth is the bar's, in characters.
	barWidth = 30
	// redrawAfter is how often the bar is drawn, at most.
	redrawAfter = 100 * time.Millisecond
	// lineEvery is how many per cent lie between two lines where there is no
	// terminal.
	lineEvery = 5
)

// Progress tells people how far the benchmark is: a bar that moves on a terminal,
// else a line from time to time. It is safe for concurrent use.
type Progress struct {
	w        io.Writer
	terminal bool
	began    time.Time

	mu     sync.Mutex // guards the rest, and writing
	total  time.Duration
	gone   time.Duration
	what   string
	drawn  time.Time // the bar, last
	lined  int       // per cent of the last line
	shown  bool      // a bar stands on the terminal's line
	closed bool
}

// NewProgress makes one for work that is expected to take total.
func NewProgress(w io.Writer, terminal bool, total time.Duration) *Progress {
	return &Progress{w: w, terminal: terminal, began: time.Now(), total: max(total, 1), lined: -lineEvery}
}

// Working says what is done now.
func (p *Progress) Working(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = what
	p.draw(false)
}

// Add says that work which was expected to take d is done.
func (p *Progress) Add(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = min(p.gone+d, p.total)
	p.draw(p.gone == p.total)
}

// Note prints a line that stays. What others say in it cannot steer the terminal.
func (p *Progress) Note(format string, args ...any) {
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, fmt.Sprintf(format, args...))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.w, line)
	p.draw(true)
}

// Close takes the bar away.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.closed = true
}

// draw shows the state, if it is time for that. mu is held.
func (p *Progress) draw(now bool) {
	if p.closed {
		return
	}
	percent := int(100 * p.gone / p.total)
	if !p.terminal {
		if percent >= p.lined+lineEvery {
			p.lined = percent - percent%lineEvery
			fmt.Fprintf(p.w, "bench: %d %%, %s: %s\n", percent, p.elapsed(), p.what)
		}
		return
	}
	if !now && time.Since(p.drawn) < redrawAfter {
		return
	}
	p.drawn, p.shown = time.Now(), true
	full := barWidth * percent / 100
	fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %3d %% %s %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), percent, p.elapsed(), p.what)
}

// clear takes the bar from the terminal's line. mu is held.
func (p *Progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *Progress) elapsed() time.Duration { return time.Since(p.began).Round(time.Second) }
