package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Build writes a file of tensors, whose bytes follow each other in the order given. It is for tests and
// for small models; what it writes, Parse reads back equal.
func Build(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	header := map[string]any{}
	if metadata != nil {
		header["__metadata__"] = metadata
	}
	size := 0
	for _, t := range tensors {
		if _, twice := header[t.Name]; twice {
			return nil, fmt.Errorf("safetensors: tensor %q is there twice", t.Name)
		}
		if t.Dtype.Size() == 0 || t.Values()*t.Dtype.Size() != len(t.Data) {
			return nil, fmt.Errorf("safetensors: tensor %q of %s with shape %v does not have %d bytes", t.Name, t.Dtype, t.Shape, len(t.Data))
		}
		shape := t.Shape
		if shape == nil {
			shape = []int{} // a scalar's is empty, not null
		}
		header[t.Name] = map[string]any{"dtype": t.Dtype, "shape": shape, "data_offsets": []int{size, size + len(t.Data)}}
		size += len(t.Data)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	for len(text)%8 != 0 { // so that the tensors are aligned
		text = append(text, ' ')
	}
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(text)+size), uint64(len(text)))
	out = append(out, text...)
	for _, t := range tensors {
		out = append(out, t.Data...)
	}
	return out, nil
}
