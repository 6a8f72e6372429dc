package processtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// EndAllIn ends every process that works in a directory, or below it, or did when that was
// still there. A runner that is killed leaves its programs behind; a real sandbox ends with
// all of them.
func EndAllIn(dir string) {
	for found := true; found; { // one that forks may be ahead by a child
		found = false
		names, _ := filepath.Glob("/proc/[0-9]*")
		for _, name := range names {
			cwd, err := os.Readlink(name + "/cwd")
			cwd = strings.TrimSuffix(cwd, " (deleted)")
			if err != nil || cwd != dir && !strings.HasPrefix(cwd, dir+"/") {
				continue // it has ended, or is another one
			}
			if pid, err := strconv.Atoi(filepath.Base(name)); err == nil && pid != os.Getpid() {
				found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
			}
		}
	}
}
