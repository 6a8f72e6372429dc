package hostnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/proc"
)

// settings are the kernel's settings that the cluster, kubelet included,
// changes on the machine; all are put back by Restore.
var settings = []string{
	"net/ipv4/ip_forward",
	"net/ipv6/conf/all/forwarding",
	inheritSetting,
	duplicateSetting,
	"vm/overcommit_memory",
	"vm/panic_on_oom",
	"kernel/panic",
	"kernel/panic_on_oops",
	"kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes",
}

// A pod's network comes up only when the kernel has made sure that nobody else
// has its IPv6 address, which takes one to two seconds. Nobody can have it: each
// pod has a cable of its own. duplicateSetting turns that off for new links, and
// inheritSetting makes new network namespaces take it over.
const (
	duplicateSetting = "net/ipv6/conf/default/accept_dad"
	inheritSetting   = "net/core/devconf_inherit_init_net"
)

// Host remembers what the machine was like before the cluster.
type Host struct {
	// BootID says of which boot the rest is: a reboot undoes everything.
	BootID string `json:"bootID"`
	// Settings are the kernel settings' values from before.
	Settings map[string]string `json:"settings"`
	// Tables are the nftables tables that were there, as "family name".
	Tables []string `json:"tables"`
}

// Remember writes the machine's state to path, unless it is there already for
// this boot: a second start must not record what the first one changed.
func Remember(ctx context.Context, path string) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	if h, err := recall(path); err == nil && h.BootID == boot {
		return nil
	}
	h := Host{BootID: boot, Settings: map[string]string{}}
	for _, s := range settings {
		value, err := os.ReadFile(settingPath(s))
		if err != nil {
			continue // this kernel lacks it, so nobody will change it
		}
		h.Settings[s] = strings.TrimSpace(string(value))
	}
	if h.Tables, err = tables(ctx); err != nil {
		return err
	}
	text, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("recording the machine's settings: %w", err)
	}
	return os.Rename(path+".new", path)
}

func recall(path string) (Host, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Host{}, err
	}
	var h Host
	return h, json.Unmarshal(text, &h)
}

// Configure lets the kernel pass packets between the cluster's networks, and
// pods start without a wait for their IPv6 address.
func Configure(fam plan.Families) error {
	type setting struct{ name, value string }
	wanted := []setting{{"net/ipv4/ip_forward", "1"}}
	if fam.V6 {
		wanted = append(wanted, setting{"net/ipv6/conf/all/forwarding", "1"},
			setting{inheritSetting, "1"}, setting{duplicateSetting, "0"})
	}
	for _, s := range wanted {
		if err := put(settingPath(s.name), s.value); err != nil {
			return fmt.Errorf("setting %s: %w", s.name, err)
		}
	}
	return nil
}

// Restore puts the kernel settings back and removes nftables tables that were
// not there before and are empty now: those that iptables made for kube-router.
func Restore(ctx context.Context, path string) error {
	h, err := recall(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the machine's earlier settings: %w", err)
	}
	if boot, err := proc.BootID(); err != nil || boot != h.BootID {
		return err
	}
	var problems []error
	for s, value := range h.Settings {
		problems = append(problems, put(settingPath(s), value))
	}
	now, err := tables(ctx)
	problems = append(problems, err)
	for _, t := range now {
		if !slices.Contains(h.Tables, t) {
			problems = append(problems, removeEmptyTable(ctx, t))
		}
	}
	return errors.Join(problems...)
}

// put writes only what differs: some kernels refuse even a write of the
// same value.
func put(path, value string) error {
	now, err := os.ReadFile(path)
	if err != nil || strings.TrimSpace(string(now)) == value {
		return err
	}
	return os.WriteFile(path, []byte(value), 0)
}

func settingPath(name string) string { return filepath.Join("/proc/sys", name) }

// HasIPv6 tells whether links can have IPv6 addresses here.
func HasIPv6() bool {
	off, err := os.ReadFile(settingPath("net/ipv6/conf/all/disable_ipv6"))
	return err == nil && strings.TrimSpace(string(off)) == "0"
}
