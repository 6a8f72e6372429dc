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
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Names in the state folder.
const (
	lockFile     = "lock"
	sandboxesDir = "sandboxes"
	recordFile   = "sandbox.json"
	hostRootDir  = "host-root"
	imagesDir    = "images"
	runscDir     = "runsc"
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

// openState makes and locks the folder. It has to be this broker's alone: what a
// broker finds there it trusts, and removes.
func openState(dir, instance string) (*state, error) {
	if instance == "" {
		instance = "default"
	}
	parent := ""
	if dir == "" {
		if !instancePattern.MatchString(instance) {
			return nil, fmt.Errorf("local: the instance %q cannot name a folder: set provider.local.stateDir", instance)
		}
		parent = runtimeDir()
		if err := ownFolder(parent); err != nil {
			return nil, err
		}
		dir = filepath.Join(parent, instance)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("local: the state folder: %w", err)
	}
	if err := ownFolder(dir); err != nil {
		return nil, err
	}
	if err := onlyState(dir); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("local: locking the state folder: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("local: another broker uses the state folder %s: stop it, or give this one another instance or provider.local.stateDir in a configuration file", dir)
	}
	st := &state{dir: dir, parent: parent, lock: lock}
	if err := os.Mkdir(filepath.Join(dir, sandboxesDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("local: making the state folder: %w", errors.Join(err, st.close()))
	}
	return st, nil
}

// ownFolder makes a folder, or checks that the one that is there belongs to this
// user, and is no link that another one may have laid.
func ownFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("local: making the state folder: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("local: the state folder %s must be a folder of this user, and writable for nobody else", dir)
	}
	return nil
}

// stateNames are all that a broker makes in its state folder.
var stateNames = []string{lockFile, sandboxesDir, hostRootDir, imagesDir, runscDir}

// onlyState refuses a folder that holds anything else: it would be taken for the
// broker's, and removed.
func onlyState(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("local: reading the state folder: %w", err)
	}
	marked := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == lockFile })
	for _, e := range entries {
		if !marked || !slices.Contains(stateNames, e.Name()) {
			return fmt.Errorf("local: the state folder %s holds %s, which no broker made: give it a folder of its own", dir, e.Name())
		}
	}
	return nil
}

// runtimeDir is where brokers keep state that ends with the machine's run.
func runtimeDir() string {
	if os.Geteuid() == 0 {
		return "/run/sandbox-broker"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "sandbox-broker")
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
		if err != nil || r.Name != e.Name() {
			// Nothing was made for it but the folder, and perhaps half a record.
			_ = os.Remove(filepath.Join(dir, recordFile))
			if err := os.Remove(dir); err != nil {
				log.Warn("the state folder holds what no broker made", "folder", dir)
			}
			continue
		}
		if err := rt.remove(r.Name, dir); err != nil {
			return fmt.Errorf("local: removing what an earlier broker left of sandbox %s: %w", r.Name, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("local: removing what an earlier broker left: %w", err)
		}
		log.Info("removed what an earlier broker left", "sandbox", r.Name)
	}
	return rt.close()
}

// close unlocks the folder and leaves it.
func (st *state) close() error { return st.lock.Close() }

// remove removes what the broker made, if every sandbox is gone, and unlocks the
// folder.
func (st *state) remove() error {
	if entries, err := os.ReadDir(filepath.Join(st.dir, sandboxesDir)); err != nil || len(entries) > 0 {
		return errors.Join(err, st.close()) // the next start sweeps it
	}
	var err error
	for _, name := range stateNames {
		err = errors.Join(err, os.RemoveAll(filepath.Join(st.dir, name)))
	}
	_ = os.Remove(st.dir) // unless somebody else has put something there
	if st.parent != "" {
		_ = os.Remove(st.parent) // other brokers may have theirs in it
	}
	return errors.Join(err, st.close())
}
