package runner_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/corpus"
)

// seesShortening prints as soon as the program's end is shortened, which nothing else
// shows.
const seesShortening = `
import os, sys
sys.setprofile(lambda frame, event, arg, write=os.write: event == "c_call" and arg.__name__ == "freeze" and frame.f_code.co_name == "end" and write(1, b"shortened"))
`

// A spare Python's end is shortened for programs that cannot tell, and for no other: what
// those print at their end is compared in TestSpareCorpus.
func TestWhoseEndIsShortened(t *testing.T) {
	needInterpreter(t, "python")
	if exec.Command("env", plainPath, "python3", "-c", "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))").Run() != nil {
		t.Skip("this machine has no Python whose end is shortened")
	}
	programs := map[string]bool{ // whether it is
		"print(1+1)": true,
		"import json, re, random, datetime, hashlib, collections; print(json.dumps({'a': [1]}))": true,
		"class A:\n  def f(self): return [self]\na = A(); a.me = a; a.f()\nraise ValueError(a)":  true,
		"import sys, threading\nt = threading.Thread(target=print); t.start(); sys.exit(3)":      true,
		"with open('f', 'w') as f: print('closed', file=f)\ndel f":                               true,
		"import weakref; print(weakref.WeakSet([print]))":                                        true,
		"import os; print(len(list(os.scandir('/'))))":                                           true,
		"f = open('f', 'w')":                  false,
		"g = (i for i in [1])":                false,
		"import ctypes":                       false,
		"import sqlite3":                      false,
		"import gc":                           false,
		"import atexit; atexit._clear()":      false,
		"import socket; s = socket.socket()":  false,
		"import sys; sys.stdout = sys.stderr": false,
		"kept = [[i] for i in range(200000)]": false,
		"import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()": false,
	}
	cases, err := corpus.Cases()
	require.NoError(t, err)
	for _, p := range cases {
		if strings.HasPrefix(p.Name, "end_") {
			programs[string(p.Code)] = p.Name == "end_metaclass"
		}
	}
	c := startRunner(t, plainPath, "SANDBOX_SPARES=python").open()
	for source, want := range programs {
		id := fmt.Sprintf("end-%d", waitSpare(t, c, "python").Used)
		r := runCase(t, c, corpus.Case{Name: id, Language: "python", Code: []byte(seesShortening + source)})
		assert.Equal(t, want, strings.Contains(string(r.Stdout), "shortened"), "%s\n%s\n%s", source, r.Stdout, r.Stderr)
	}
}
