// Package mounts finds and removes what kubelet and containerd have mounted
// below a folder.
package mounts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Below lists the mount points at or under dir, the deepest first.
func Below(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parse(f, dir)
}

func parse(r io.Reader, dir string) ([]string, error) {
	var points []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		const mountPoint = 4
		fields := strings.Fields(lines.Text())
		if len(fields) <= mountPoint {
			continue
		}
		p := unescape(fields[mountPoint])
		if p == dir || strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	// Later mounts lie over or inside earlier ones.
	slices.Reverse(points)
	return points, lines.Err()
}

// unescape undoes the kernel's octal escapes of spaces and the like.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// RemoveBelow unmounts everything at or under dir and returns how many there
// were. Their users are gone by then, but the kernel may not have let go of all
// of them yet, so each is detached at once and freed when it is.
func RemoveBelow(dir string) (int, error) {
	points, err := Below(dir)
	if err != nil {
		return 0, err
	}
	var problems []error
	for _, p := range points {
		err := syscall.Unmount(p, syscall.MNT_DETACH)
		// One that lay inside another may have gone with it.
		if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			problems = append(problems, fmt.Errorf("unmounting %s: %w", p, err))
		}
	}
	return len(points), errors.Join(problems...)
}
