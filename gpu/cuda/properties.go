package cuda

import "fmt"

// Properties are what the driver says of a GPU.
type Properties struct {
	Name            string
	Capability      [2]int // major and minor
	Multiprocessors int
	ClockHz         int64 // of the multiprocessors, at most
	MemoryBytes     int64
	MemoryClockHz   int64
	BusBits         int // width of the memory's bus
}

// Bandwidth is what the memory can give, in bytes a second: two transfers over the bus in a cycle.
func (p *Properties) Bandwidth() float64 {
	return 2 * float64(p.MemoryClockHz) * float64(p.BusBits) / 8
}

// tensorRates are the multiply-adds that the tensor cores of a multiprocessor do in a cycle, of halves without
// sparsity, by compute capability: NVIDIA's whitepapers of each generation give the rates of whole GPUs.
var tensorRates = map[[2]int]int{
	{7, 5}: 512, {8, 0}: 1024, {8, 6}: 512, {8, 7}: 1024, {8, 9}: 512, {9, 0}: 2048, {10, 0}: 4096, {10, 3}: 4096, {12, 0}: 512, {12, 1}: 512,
}

// MultiplyAdds is what the tensor cores can do, in multiply-adds of halves a second, and of what that was
// computed; 0 where the generation isn't known.
func (p *Properties) MultiplyAdds() (rate float64, how string) {
	n, ok := tensorRates[p.Capability]
	if !ok {
		return 0, fmt.Sprintf("the tensor cores' rate is not known for compute capability %d.%d", p.Capability[0], p.Capability[1])
	}
	return float64(p.Multiprocessors) * float64(p.ClockHz) * float64(n),
		fmt.Sprintf("%d multiprocessors × %.3f GHz × %d multiply-adds of halves a cycle in tensor cores (compute capability %d.%d, dense)",
			p.Multiprocessors, float64(p.ClockHz)/1e9, n, p.Capability[0], p.Capability[1])
}
