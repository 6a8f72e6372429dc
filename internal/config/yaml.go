package config

import (
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Duration is a time.Duration written like "30s" or "1h30m".
type Duration struct{ D time.Duration }

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return fmt.Errorf("line %d: %q is no duration; write one like 30s or 1m30s", n.Line, n.Value)
	}
	if v <= 0 {
		return fmt.Errorf("line %d: the duration %q must be positive", n.Line, n.Value)
	}
	d.D = v
	return nil
}

// Size is a number of bytes, written as such or like "512KiB" or "1MiB".
type Size int64

// maxSize bounds a Size, in bytes.
const maxSize = 1 << 40

var units = []struct {
	suffix string
	factor int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"", 1}}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(n.Value, u.suffix)
		if !ok {
			continue
		}
		v, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if n.Kind != yaml.ScalarNode || err != nil || v <= 0 || v > maxSize/u.factor {
			break
		}
		*s = Size(v * u.factor)
		return nil
	}
	return fmt.Errorf("line %d: %q is no size from 1 byte to 1024 GiB; write one like 65536 or 1MiB", n.Line, n.Value)
}

// decodeStrict decodes one YAML document into v, which points to a struct, and
// keeps its nodes. Unknown and repeated keys are errors.
func decodeStrict(name string, b []byte, root **yaml.Node, v any) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(doc.Content) == 0 {
		return fmt.Errorf("%s: the file is empty", name)
	}
	*root = doc.Content[0]
	if err := known(*root, reflect.TypeOf(v).Elem(), ""); err != nil {
		return fmt.Errorf("%s:%w", name, err)
	}
	if err := doc.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// maxDepth bounds the nesting of a file.
const maxDepth = 32

// known checks a node's keys against a type's.
func known(n *yaml.Node, t reflect.Type, path string) error {
	if strings.Count(path, ".") > maxDepth {
		return fmt.Errorf("%d: %s: nested too deeply", n.Line, path)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case n.Kind == yaml.AliasNode:
		return fmt.Errorf("%d: %s: aliases are not allowed", n.Line, path)
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		for i, c := range n.Content {
			if err := known(c, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(unmarshaler):
		if n.Kind != yaml.MappingNode {
			return fmt.Errorf("%d: %s: a mapping of %s is needed", n.Line, orRoot(path), strings.Join(keysOf(t), ", "))
		}
		return knownKeys(n, t, path)
	}
	return nil
}

func knownKeys(n *yaml.Node, t reflect.Type, path string) error {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		at := strings.TrimPrefix(path+"."+k.Value, ".")
		f, ok := fieldOf(t, k.Value)
		if !ok {
			return fmt.Errorf("%d: %s: unknown key; here %s are known", k.Line, at, strings.Join(keysOf(t), ", "))
		}
		if seen[k.Value] {
			return fmt.Errorf("%d: %s: the key is given twice", k.Line, at)
		}
		seen[k.Value] = true
		if err := known(n.Content[i+1], f.Type, at); err != nil {
			return err
		}
	}
	return nil
}

var unmarshaler = reflect.TypeFor[yaml.Unmarshaler]()

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("yaml") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			keys = append(keys, f.Tag.Get("yaml"))
		}
	}
	sort.Strings(keys)
	return keys
}

func orRoot(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

// lineOf finds the line of a key like pools[0].queue.length, or of the nearest
// key above it that the file has.
func lineOf(n *yaml.Node, key string) int {
	line := n.Line
	for part := range strings.SplitSeq(key, ".") {
		name, index, _ := strings.Cut(part, "[")
		k, v := child(n, name)
		if v == nil {
			return line
		}
		line, n = k.Line, v
		if index == "" {
			continue
		}
		i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if err != nil || i >= len(n.Content) {
			return line
		}
		n = n.Content[i]
		line = n.Line
	}
	return line
}

func child(n *yaml.Node, name string) (key, value *yaml.Node) {
	for i := 0; i+1 < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}

// LoadKey reads a secret key of at least n bytes.
func LoadKey(path string, n int) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: handleKeyFile: %w", err)
	}
	if len(b) < n {
		return nil, fmt.Errorf("config: handleKeyFile: %s has %d bytes; at least %d are needed (make one with: head -c 32 /dev/urandom)", path, len(b), n)
	}
	return b, nil
}
