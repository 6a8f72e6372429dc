package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// modulePath is what the project's go.mod begins with.
const modulePath = "github.com/sandbox-broker/sandbox-broker"

// Dirs are the folders that the cluster uses. Everything under State is of this
// one cluster and goes with it; Cache outlives it and is shared by all clones.
type Dirs struct {
	// Project is the root of the checkout, State its .cluster, Cache the
	// project's part of the user's cache folder. All are absolute.
	Project, State, Cache string
}

// FindDirs finds the project from the folder start upwards.
func FindDirs(start string) (Dirs, error) {
	project, err := findProject(start)
	if err != nil {
		return Dirs{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Dirs{}, fmt.Errorf("finding the cache folder: %w", err)
	}
	return Dirs{
		Project: project,
		State:   filepath.Join(project, ".cluster"),
		Cache:   filepath.Join(cache, "sandbox-broker"),
	}, nil
}

func findProject(start string) (string, error) {
	dir, err := filepath.Abs(start)
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		switch {
		case err == nil:
			first, _, _ := strings.Cut(string(text), "\n")
			if strings.TrimSpace(first) == "module "+modulePath {
				return dir, nil
			}
		case !errors.Is(err, os.ErrNotExist):
			return "", err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%s is not inside a checkout of %s", start, modulePath)
		}
		dir = parent
	}
}

// In returns a path under the state folder.
func (d Dirs) In(elem ...string) string {
	return filepath.Join(append([]string{d.State}, elem...)...)
}

// Run holds the records of processes, and sockets.
func (d Dirs) Run() string { return d.In("run") }

// Logs holds one file for each process; it outlives the cluster.
func (d Dirs) Logs() string { return d.In("logs") }

// Bin holds links to the cluster's programs.
func (d Dirs) Bin() string { return d.In("bin") }

// Config holds the components' configuration.
func (d Dirs) Config() string { return d.In("etc") }

// PKI holds keys and certificates.
func (d Dirs) PKI() string { return d.In("pki") }

// Build holds what is built from the project itself.
func (d Dirs) Build() string { return d.In("build") }

// Lock is the file that keeps two runs of the program apart.
func (d Dirs) Lock() string { return d.In("lock") }

// HostRecord says what the machine was like before the cluster.
func (d Dirs) HostRecord() string { return d.In("host.json") }

// ContainerdRoot is where containerd keeps its images.
func (d Dirs) ContainerdRoot() string { return d.In("containerd") }

// ContainerdState is the folder of containerd's running containers.
func (d Dirs) ContainerdState() string { return d.In("run", "containerd") }

// ContainerdSocket is where containerd listens.
func (d Dirs) ContainerdSocket() string { return d.In("run", "containerd.sock") }

// AdminKubeconfig is for people, tests and this program itself.
func (d Dirs) AdminKubeconfig() string { return d.In("admin.kubeconfig") }

// AgentToken is the token of the caller that tests act as.
func (d Dirs) AgentToken() string { return d.In("agent.token") }

// OtherToken is the token of a caller who is another tenant.
func (d Dirs) OtherToken() string { return d.In("other.token") }

// BrokerCA is what a client of the broker has to trust.
func (d Dirs) BrokerCA() string { return d.In("broker-ca.crt") }

// Kubeconfig is the file by which one component reaches the API server.
func (d Dirs) Kubeconfig(component string) string {
	return d.In("etc", component+".kubeconfig")
}
