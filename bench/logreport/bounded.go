package logreport

import (
	"slices"
	"strings"
)

// bounded has sums for groups of lines, at most maxGroups of them: those whose keys are least. All others
// share one, or as many as the last values that tell them apart make, bounded in turn. Which these are does
// not depend on the order in which lines come, so that parts of a log add up to what all of it is.
type bounded[V any] struct {
	groups map[string]*member[V]
	keys   []string // sorted
	others *bounded[V]
	apart  int // how many of the last values tell the others apart
	merge  func(into, from *V)
	key    []byte
	values []string
}

// member is a group: its values in the dimensions, and what is known of it. The zero V knows nothing.
type member[V any] struct {
	values []string
	of     V
}

// maxGroups bounds how many groups there are; the values of what is beyond are all other.
const (
	maxGroups = 2000
	other     = "(other)"
)

func newBounded[V any](merge func(into, from *V), apart int) *bounded[V] {
	return &bounded[V]{groups: map[string]*member[V]{}, merge: merge, apart: apart}
}

// at is the group of these values: they are copied when it is new.
func (t *bounded[V]) at(values []string) *V {
	t.key = t.key[:0]
	for _, v := range values {
		t.key = append(append(t.key, v...), 0)
	}
	key := t.key
	if m := t.groups[string(key)]; m != nil {
		return &m.of
	}
	if len(t.keys) == maxGroups && string(key) > t.keys[maxGroups-1] {
		return t.rest(values)
	}
	m := &member[V]{values: make([]string, len(values))}
	for i, v := range values {
		m.values[i] = strings.Clone(v)
	}
	k := string(key)
	i, _ := slices.BinarySearch(t.keys, k)
	t.keys = slices.Insert(t.keys, i, k)
	t.groups[k] = m
	if len(t.keys) > maxGroups {
		greatest := t.keys[maxGroups]
		t.merge(t.rest(t.groups[greatest].values), &t.groups[greatest].of)
		delete(t.groups, greatest)
		t.keys = t.keys[:maxGroups]
	}
	return &m.of
}

// rest is the group of these values among the others.
func (t *bounded[V]) rest(values []string) *V {
	if t.others == nil {
		t.others = newBounded(t.merge, t.apart-1)
	}
	t.values = append(t.values[:0], values...)
	for i := range len(values) - max(t.apart, 0) {
		t.values[i] = other
	}
	return t.others.at(t.values)
}

// add adds what o has.
func (t *bounded[V]) add(o *bounded[V]) {
	for _, m := range o.groups {
		t.merge(t.at(m.values), &m.of)
	}
	if o.others == nil {
		return
	}
	for _, m := range o.others.all() {
		t.merge(t.rest(m.values), &m.of)
	}
}

// all are the groups, in the order of their keys; that of the others comes last.
func (t *bounded[V]) all() []*member[V] {
	var list []*member[V]
	for _, key := range t.keys {
		list = append(list, t.groups[key])
	}
	if t.others != nil {
		list = append(list, t.others.all()...)
	}
	return list
}
