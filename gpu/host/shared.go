package host

import (
	"fmt"
	"sync"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// Shared is a model's weights for several devices, which have one copy of them: it is made as the first
// device is opened, and freed when none is left. Its methods are safe for concurrent use.
type Shared struct {
	model   *model.Model
	devices int

	mu      sync.Mutex
	weights *weights // nil while users is 0
	users   int
}

// Share lets so many devices share m's weights.
func Share(m *model.Model, devices int) *Shared { return &Shared{model: m, devices: devices} }

// Open is the function Open for one of the devices. It has threads of its own, and a KV cache whose default
// size is its part of what a single device would take.
func (s *Shared) Open(c gpu.Config) (*Host, error) {
	cpu, err := instructionsHere()
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return s.openWith(c, cpu)
}

func (s *Shared) openWith(c gpu.Config, cpu instructions) (*Host, error) {
	h, err := s.open(c, cpu)
	if err != nil {
		return nil, fmt.Errorf("host: model %s: %w", s.model.Name, err)
	}
	return h, nil
}

// take gives a device the weights. Where it is the first, its workers pack them.
func (s *Shared) take(h *Host, packings map[gguf.Type]packing) (*weights, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		w, err := newWeights(s.model, packings)
		if err != nil {
			return nil, err
		}
		if w.memory, err = h.packWeights(w.linears()); err != nil {
			return nil, err
		}
		if w.memory != nil {
			s.model.Release()
		}
		s.weights = w
	}
	s.users++
	return s.weights, nil
}

// give takes them back.
func (s *Shared) give() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	w := s.weights
	s.weights = nil
	return w.close()
}
