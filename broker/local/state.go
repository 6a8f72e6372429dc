//go:build linux

package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// Names in the state folder.
const (
	lockFile     = "lock"
	sandboxesDir = "sandboxes"
	recordFile   = "sandbox.json"
)

var instancePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62})$`)

// state is the folder where everything that a broker makes is kept, under a lock
// that ends with the process.
type state struct {
	dir    string
	parent string // of a folder that was not given; removed when it is empty
	lock   *os.File
}

// record says what a sandbox's folder stands for. It is written before anything
// else is made, so that nothing that is to be removed is found by its name.
type record struct {
	Name string `json:"name"`
}

// openState makes and locks the folder.
func openState(dir, instance string) (*state, error) {
	if instance == "" {
		instance = "default"
	}
	parent := ""
	if dir == "" {
		if !instancePattern.MatchString(instance) {
			return nil, fmt.Errorf("local: the instance %q cannot name a folder: set provider.local.stateDir", instance)
		}
		parent = filepath.Join(runtimeDir(), "sandbox-broker")
		dir = filepath.Join(parent, instance)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("local: the state folder: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, sandboxesDir), 0o700); err != nil {
		return nil, fmt.Errorf("local: making the state folder: %w", err)
	}
	// Others must not put anything here that this process then trusts.
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("local: the state folder %s must belong to this user, and be writable for nobody else", dir)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("local: locking the state folder: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("local: another broker uses the state folder %s: give this one another instance or provider.local.stateDir", dir)
	}
	return &state{dir: dir, parent: parent, lock: lock}, nil
}

// runtimeDir is where the system wants state that ends with the machine's run.
func runtimeDir() string {
	if os.Geteuid() == 0 {
		return "/run"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	return filepath.Join(os.TempDir(), "sandbox-broker-"+strconv.Itoa(os.Geteuid()))
}

// newSandbox makes a sandbox's folder with its record.
func (st *state) newSandbox(name string) (string, error) {
	dir := filepath.Join(st.dir, sandboxesDir, name)
	text, err := json.Marshal(record{Name: name})
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, recordFile), text, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("local: recording a sandbox: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	return dir, nil
}

// sweep removes what a killed broker left. Its processes died with it.
func (st *state) sweep(rt runtime, log *slog.Logger) error {
	entries, err := os.ReadDir(filepath.Join(st.dir, sandboxesDir))
	if err != nil {
		return fmt.Errorf("local: reading the state folder: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(st.dir, sandboxesDir, e.Name())
		var r record
		text, err := os.ReadFile(filepath.Join(dir, recordFile))
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		// Without a record nothing but the folder was made.
		if err == nil && r.Name == e.Name() {
			if err := rt.remove(r.Name, dir); err != nil {
				return fmt.Errorf("local: removing what an earlier broker left of sandbox %s: %w", r.Name, err)
			}
			log.Info("removed what an earlier broker left", "sandbox", r.Name)
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("local: removing what an earlier broker left: %w", err)
		}
	}
	return rt.close()
}

// close unlocks the folder and leaves it.
func (st *state) close() error { return st.lock.Close() }

// remove removes the folder, if every sandbox in it is gone, and unlocks it.
func (st *state) remove() error {
	if entries, err := os.ReadDir(filepath.Join(st.dir, sandboxesDir)); err != nil || len(entries) > 0 {
		return errors.Join(err, st.close()) // the next start sweeps it
	}
	err := os.RemoveAll(st.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if st.parent != "" {
		_ = os.Remove(st.parent) // other brokers may have theirs in it
	}
	return errors.Join(err, st.close())
}
