package main

import (
	"maps"
	"slices"

	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	v1 "k8s.io/api/core/v1"
)

// familyOption says in the options of a set of which family it is; the kernel
// names the family of every set that it lists.
const familyOption = "family"

// familySets is a handler that sees and writes the sets of one family only.
type familySets struct {
	utils.IPSetHandler
	// family is "inet" or "inet6".
	family string
}

// onePerFamily puts a handler of its own in the place of each family's. Both are
// made as kube-router makes the one for IPv4, which puts nothing before a name.
func onePerFamily(handlers map[v1.IPFamily]utils.IPSetHandler) (map[v1.IPFamily]utils.IPSetHandler, error) {
	families := map[v1.IPFamily]string{v1.IPv4Protocol: "inet", v1.IPv6Protocol: "inet6"}
	own := map[v1.IPFamily]utils.IPSetHandler{}
	for protocol := range handlers {
		sets, err := utils.NewIPSet(false)
		if err != nil {
			return nil, err
		}
		own[protocol] = familySets{sets, families[protocol]}
	}
	return own, nil
}

// Save reads the kernel's sets and forgets those of the other family.
func (s familySets) Save() error {
	if err := s.IPSetHandler.Save(); err != nil {
		return err
	}
	keepFamily(s.Sets(), s.family)
	return nil
}

func keepFamily(sets map[string]*utils.Set, family string) {
	maps.DeleteFunc(sets, func(_ string, set *utils.Set) bool { return familyOf(set) != family })
}

func familyOf(set *utils.Set) string {
	at := slices.Index(set.Options, familyOption)
	if at < 0 || at+1 >= len(set.Options) {
		return ""
	}
	return set.Options[at+1]
}

// RefreshSet sets the addresses of a set, which Restore brings to the kernel. A
// new one is given its family.
func (s familySets) RefreshSet(name string, entries [][]string, kind string) {
	s.IPSetHandler.RefreshSet(name, entries, kind)
	if set := s.Get(name); set != nil && familyOf(set) == "" {
		set.Options = append(set.Options, familyOption, s.family)
	}
}
