// Package version says which build this is.
package version

import "runtime/debug"

// Version and Commit are set when a release is linked; a plain `go build` leaves
// them empty and the module's own build information is used.
var (
	Version string
	Commit  string
)

// String is one line for people: version and commit, as far as known.
func String() string {
	v, c := Version, Commit
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && c == "" {
				c = s.Value
			}
		}
	}
	if v == "" {
		v = "(devel)"
	}
	if c == "" {
		return v
	}
	return v + " (" + c + ")"
}
