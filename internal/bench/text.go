package bench

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report for people. It returns w's error.
func (r *Report) Print(w io.Writer) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	r.printTimes(t, "until the ending, in ms", func(row Row) *Times { return &row.Done })
	r.printTimes(t, "until the first byte, in ms", func(row Row) *Times { return row.FirstByte })
	r.printTimes(t, "until the last byte, in ms", func(row Row) *Times { return row.LastByte })
	r.printFigures(t)
	r.printGoals(t)
	_ = t.Flush() // into memory
	for _, line := range r.LeftOut {
		fmt.Fprintf(&b, "left out: %s\n", line)
	}
	if r.Ended != "" {
		fmt.Fprintf(&b, "ended early: %s\n", r.Ended)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// printTimes writes one table: the rows that have such a time.
func (r *Report) printTimes(w *tabwriter.Writer, title string, of func(Row) *Times) {
	fmt.Fprintf(w, "%s\tsamples\tfailed\tp50\tp90\tp99\tmax\t\n", pad(title))
	for _, row := range r.Rows {
		t := of(row)
		if t == nil {
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t\n", pad(row.Name), row.Samples, row.Failed, short(t.P50), short(t.P90), short(t.P99), short(t.Max))
	}
	_ = w.Flush() // into memory; the next table has columns of its own
	fmt.Fprintln(w)
}

func (r *Report) printFigures(w *tabwriter.Writer) {
	for _, row := range r.Rows {
		if row.MBPerSecond > 0 {
			fmt.Fprintf(w, "%s\t%s\tMB/s\t\n", pad(row.Name+", rate"), short(row.MBPerSecond))
		}
	}
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", pad(f.Name), short(f.Value), f.Unit)
	}
	_ = w.Flush() // as above
	fmt.Fprintln(w)
}

func (r *Report) printGoals(w *tabwriter.Writer) {
	fmt.Fprintf(w, "%s\tfigures\tratio\tgoal\tmust\tverdict\t\n", pad("goal"))
	for _, j := range r.Goals {
		figures := short(j.Left)
		if j.Right != 0 {
			figures += " : " + short(j.Right)
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%s\t%s\t\n", pad(j.Name), figures, j.Figures, j.ratio(), j.bound(j.Goal), j.bound(j.Must), j.Verdict)
	}
	_ = w.Flush() // as above
}

// nameWidth is that of the first column: the longest name fits.
const nameWidth = 68

// pad aligns the first column to the left, where the others are to the right.
func pad(s string) string { return fmt.Sprintf("%-*s", nameWidth, s) }
