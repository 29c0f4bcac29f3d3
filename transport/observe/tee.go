package observe

import "github.com/troupe-llm/troupe/lifecycle"

// Tee returns an observer that tells each of the given ones in turn. Nil ones are left out. With
// none left it returns an observer that does nothing, so that the caller need not ask.
func Tee(observers ...lifecycle.Observer) lifecycle.Observer {
	var t tee
	for _, o := range observers {
		switch o := o.(type) {
		case nil:
		case tee:
			t = append(t, o...)
		default:
			t = append(t, o)
		}
	}
	if len(t) == 1 {
		return t[0]
	}
	return t
}

type tee []lifecycle.Observer

func (t tee) Progress(p *lifecycle.Progress) {
	for _, o := range t {
		o.Progress(p)
	}
}

func (t tee) Observe(r *lifecycle.Record) {
	for _, o := range t {
		o.Observe(r)
	}
}
