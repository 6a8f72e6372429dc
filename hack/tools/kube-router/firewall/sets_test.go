package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
)

func TestKeepFamily(t *testing.T) {
	sets := map[string]*utils.Set{
		"four": {Options: []string{"hash:ip", "family", "inet", "hashsize", "1024"}},
		"six":  {Options: []string{"hash:ip", "family", "inet6", "hashsize", "1024"}},
		"odd":  {Options: []string{"bitmap:port", "range", "0-10"}},
	}
	for family, want := range map[string]string{"inet": "four", "inet6": "six"} {
		left := maps.Clone(sets)
		keepFamily(left, family)
		if names := slices.Collect(maps.Keys(left)); !slices.Equal(names, []string{want}) {
			t.Errorf("%s: left %v, want only %s", family, names, want)
		}
	}
}
