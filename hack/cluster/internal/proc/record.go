// Package proc starts the cluster's long-running processes and keeps track of
// them between runs of this program.
//
// Each has a record: its process ID with the time it started, as the kernel
// tells it, and the machine's boot ID. A process ID alone proves nothing, for
// the kernel hands it out again; the three together name one process for ever.
// Nothing is ever signalled that does not match its record.
package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Record names one started process.
type Record struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// StartTicks is field 22 of /proc/PID/stat: clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootID"`
	// Spec is a digest of what was started: program, arguments, configuration.
	Spec    string    `json:"spec"`
	Started time.Time `json:"started"`
}

// Same tells whether the process that has r's ID now is the one recorded. A
// zombie counts as gone.
func (r Record) Same() bool {
	boot, err := BootID()
	if err != nil || boot != r.BootID {
		return false
	}
	stat, err := readStat(r.PID)
	return err == nil && stat.startTicks == r.StartTicks && !stat.zombie
}

// BootID names the current boot of the machine.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

type stat struct {
	startTicks uint64
	zombie     bool
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(text)
}

// parseStat reads the state and the start time. The program's name, in
// parentheses, may itself hold spaces and parentheses: count from its end.
func parseStat(text []byte) (stat, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, errors.New("stat line without a program name")
	}
	fields := strings.Fields(string(text[end+1:]))
	const state, startTime = 0, 19 // fields 3 and 22 of the whole line
	if len(fields) <= startTime {
		return stat{}, errors.New("stat line is too short")
	}
	ticks, err := strconv.ParseUint(fields[startTime], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start time in the stat line: %w", err)
	}
	return stat{startTicks: ticks, zombie: fields[state] == "Z"}, nil
}

func recordPath(dir, name string) string { return filepath.Join(dir, name+".json") }

// load reads the record of name; a missing or half-written one reads as none.
func load(dir, name string) (Record, bool, error) {
	text, err := os.ReadFile(recordPath(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("reading the record of %s: %w", name, err)
	}
	var r Record
	if json.Unmarshal(text, &r) != nil || r.PID <= 1 {
		return Record{}, false, nil
	}
	return r, true, nil
}

// save writes the record whole or not at all.
func save(dir string, r Record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := recordPath(dir, r.Name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("recording %s: %w", r.Name, err)
	}
	return os.Rename(path+".new", path)
}
