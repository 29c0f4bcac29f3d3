package prove

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// The shape of Qwen2.5-1.5B, as its config.json has it.
const (
	bigLayers, bigWidth, bigHeads, bigKVHeads, bigHeadDim, bigFFN, bigVocab = 28, 1536, 12, 2, 128, 8960, 151936
	// Weights of Q8_0 have 34 bytes for 32.
	bigParameters = bigWidth*bigVocab + bigLayers*(2*bigWidth*bigHeads*bigHeadDim+2*bigWidth*bigKVHeads*bigHeadDim+3*bigWidth*bigFFN)
)

// bigMemory is what the model takes while it is made up, and beside its KV cache where it is computed.
func bigMemory() int64 { return 4 * bigParameters * 34 / 32 }

// bigModel makes the model up. All its matrices have the same random numbers in them, which makes no difference to
// how long they take.
func bigModel() (*model.Model, error) { return randomQwen(bigLayers, bigVocab) }

func randomQwen(layers, vocab int) (*model.Model, error) {
	var b gguf.Builder
	b.Set("general.architecture", "qwen2")
	b.Set("general.name", BigModel)
	for key, v := range map[string]int{
		"context_length": 32768, "embedding_length": bigWidth, "block_count": layers, "feed_forward_length": bigFFN,
		"attention.head_count": bigHeads, "attention.head_count_kv": bigKVHeads,
	} {
		b.Set("qwen2."+key, uint32(v))
	}
	b.Set("qwen2.attention.layer_norm_rms_epsilon", float32(1e-6))
	b.Set("qwen2.rope.freq_base", float32(1e6))
	tiny.SetTokenizer(&b, vocab)

	rng := rand.New(rand.NewPCG(15, 80))
	data := make([]byte, gguf.Q8_0.RowBytes(max(bigWidth*vocab, bigWidth*bigFFN)))
	for i := 0; i+8 <= len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], rng.Uint64())
	}
	for i := 0; i < len(data); i += gguf.Q8_0.BlockBytes() {
		binary.LittleEndian.PutUint16(data[i:], 0x0c00) // 2⁻¹²: weights of some hundredths
	}
	matrix := func(name string, in, out int) {
		b.Add(name+".weight", gguf.Q8_0, []int{in, out}, data[:gguf.Q8_0.RowBytes(in)*out])
	}
	vector := func(name string, n int, v float32) {
		encoded, _ := gguf.Encode(gguf.F32, slices.Repeat([]float32{v}, n)) // floats always can be
		b.Add(name, gguf.F32, []int{n}, encoded)
	}
	matrix("token_embd", bigWidth, vocab)
	for i := range layers {
		blk := fmt.Sprintf("blk.%d.", i)
		vector(blk+"attn_norm.weight", bigWidth, 1)
		vector(blk+"ffn_norm.weight", bigWidth, 1)
		for part, heads := range map[string]int{"q": bigHeads, "k": bigKVHeads, "v": bigKVHeads} {
			matrix(blk+"attn_"+part, bigWidth, heads*bigHeadDim)
			vector(blk+"attn_"+part+".bias", heads*bigHeadDim, 0)
		}
		matrix(blk+"attn_output", bigHeads*bigHeadDim, bigWidth)
		matrix(blk+"ffn_gate", bigWidth, bigFFN)
		matrix(blk+"ffn_up", bigWidth, bigFFN)
		matrix(blk+"ffn_down", bigFFN, bigWidth)
	}
	vector("output_norm.weight", bigWidth, 1)
	file, err := b.Bytes()
	if err != nil {
		return nil, err
	}
	return model.Parse(file, BigModel)
}
