// Package kindgvisor_test runs hack/kind-gvisor.sh against stand-ins for kind,
// docker, kubectl and curl. They record every call and keep just enough state in
// a folder to answer the next one. It shows that the script's logic is right; it
// cannot show that the real tools agree.
package kindgvisor_test

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The stand-ins find their world through these variables.
const (
	worldVariable = "STANDIN_WORLD" // the folder that holds their state
	failVariable  = "STANDIN_FAIL"  // calls that begin with this fail
)

var errRefused = errors.New("told to fail")

// standins are the programs that the script finds on its PATH instead of the
// real ones. Each gets its arguments and a world to act upon.
var standins = map[string]func(world, []string) error{
	"kind": kind, "docker": docker, "kubectl": func(world, []string) error { return nil }, "curl": curl,
}

// TestMain is the stand-in when the test binary was started under its name.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	standin, ok := standins[name]
	if !ok {
		os.Exit(m.Run())
	}
	if err := play(name, standin, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

func play(name string, standin func(world, []string) error, args []string) error {
	w := world(os.Getenv(worldVariable))
	call := strings.Join(append([]string{name}, args...), " ")
	if err := w.appendTo("calls", call+"\n"); err != nil {
		return err
	}
	if prefix := os.Getenv(failVariable); prefix != "" && strings.HasPrefix(call, prefix) {
		return errRefused
	}
	return standin(w, args)
}

// world is the folder with the state: calls, clusters, and the node's files.
type world string

func (w world) path(elements ...string) string {
	return filepath.Join(append([]string{string(w)}, elements...)...)
}

func (w world) read(elements ...string) string {
	data, err := os.ReadFile(w.path(elements...))
	if err != nil {
		return ""
	}
	return string(data)
}

func (w world) appendTo(name, text string) error {
	f, err := os.OpenFile(w.path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

func kind(w world, args []string) error {
	switch strings.Join(args[:2], " ") {
	case "get clusters":
		fmt.Print(w.read("clusters"))
	case "get nodes":
		fmt.Println(args[3] + "-control-plane")
	case "create cluster":
		return w.appendTo("clusters", args[3]+"\n")
	case "delete cluster":
		left := slices.DeleteFunc(strings.Split(w.read("clusters"), "\n"), func(name string) bool { return name == args[3] })
		return os.WriteFile(w.path("clusters"), []byte(strings.Join(left, "\n")), 0o644)
	default:
		return fmt.Errorf("unexpected: %v", args)
	}
	return nil
}

// docker plays `cp` and what the script runs in the node.
func docker(w world, args []string) error {
	if args[0] == "cp" {
		_, target, _ := strings.Cut(args[2], ":")
		data, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		return os.WriteFile(w.path("node", filepath.Base(target)), data, 0o644)
	}
	command := args[2:] // after exec NODE
	if args[1] == "-i" {
		command = args[3:]
	}
	switch command[0] {
	case "uname":
		fmt.Println(w.read("arch"))
	case "cat":
		fmt.Print(w.read("node", filepath.Base(command[1])))
	case "tee":
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		return w.appendTo(filepath.Join("node", filepath.Base(command[2])), string(text))
	case "sha512sum":
		data, err := os.ReadFile(w.path("node", filepath.Base(command[1])))
		if err != nil {
			return err
		}
		fmt.Printf("%s  %s\n", sum(string(data)), command[1])
	case "systemctl": // containerd reads its configuration only at its start
		return os.WriteFile(w.path("node", "running"), []byte(w.read("node", "config.toml")), 0o644)
	case "crictl":
		if strings.Contains(w.read("node", "running"), "runtimes.runsc]") {
			fmt.Println(`{"runtimes": {"runc": {}, "runsc": {}}}`)
		} else {
			fmt.Println(`{"runtimes": {"runc": {}}}`)
		}
	case "chmod":
	default:
		return fmt.Errorf("unexpected: %v", args)
	}
	return nil
}

// curl writes what the world says is at the end of the address.
func curl(w world, args []string) error {
	output := args[slices.Index(args, "--output")+1]
	address := args[len(args)-1]
	return os.WriteFile(output, []byte(w.read("upstream", filepath.Base(address))), 0o644)
}

func sum(text string) string {
	digest := sha512.Sum512([]byte(text))
	return hex.EncodeToString(digest[:])
}
