//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/troupe-llm/troupe/gpu/cuda/driver"
)

// GraphsVariable is the environment variable that, when it is "off", has steps of decodes launched kernel by
// kernel, for comparisons and to look for faults.
const GraphsVariable = "TROUPE_CUDA_GRAPHS"

const (
	// mostGraphs is how many graphs are kept; the one that was not used for longest gives way.
	mostGraphs = 32
	// Memory that is set aside for them: the driver doesn't say what a graph takes. These are our bounds: of a
	// step's launches, and of what one needs in the GPU's memory.
	layerLaunches, chunkLaunches = 32, 8
	launchBytes                  = 4 << 10
)

// launches are what graphs of steps of decodes differ in.
type launches struct{ n, parts, per int }

// graphs are the steps of decodes that were captured. Each is made when it is first needed: there are more
// combinations than any load meets, and a start should not wait for them all.
type graphs struct {
	off  bool
	most int // that are kept
	made map[launches]*graph
	uses int64
}

type graph struct {
	driver.Graph
	used int64 // the number of the last use
}

// graphsOff says whether the environment switches graphs off.
func graphsOff() bool { return os.Getenv(GraphsVariable) == "off" }

// graphBytes is the memory that graphs may take.
func (d *Device) graphBytes() int64 {
	if d.graphs.off {
		return 0
	}
	chunks := ceil(min(d.config.MaxSeqs, d.tileRows()), d.room)
	return mostGraphs * launchBytes * int64(layerLaunches*d.model.Layers+chunkLaunches*(chunks+1))
}

// launchDecodes puts a step of decodes on the stream as a graph. Where there can be none, that is said once, and
// the kernels are launched one by one from then on.
func (d *Device) launchDecodes() error {
	w := &d.step.tiles[0].work
	key := launches{d.step.n, w.parts, w.per}
	g := &d.graphs
	made := g.made[key]
	if made == nil {
		var err error
		if made, err = d.capture(key); err != nil {
			if _, sticky := blame(err); sticky { // nothing else would work
				return err
			}
			g.off = true
			d.logger.Warn("steps of decodes are launched kernel by kernel, since CUDA's graphs cannot be used", slog.Any("error", err))
			return d.launchStep()
		}
	}
	g.uses++
	made.used = g.uses
	if err := made.Launch(d.stream); err != nil {
		return fmt.Errorf("launching a step of %d decodes: %w", key.n, err)
	}
	return nil
}

// capture makes the graph of the step at hand.
func (d *Device) capture(key launches) (*graph, error) {
	g := &d.graphs
	if len(g.made) == g.most {
		var oldest launches
		for k, made := range g.made {
			if o := g.made[oldest]; o == nil || made.used < o.used {
				oldest = k
			}
		}
		old := g.made[oldest]
		delete(g.made, oldest)
		if err := old.Destroy(); err != nil {
			return nil, fmt.Errorf("destroying a graph: %w", err)
		}
	}
	captured, err := driver.Capture(d.stream, d.launchStep)
	if err != nil {
		return nil, fmt.Errorf("a step of %d decodes: %w", key.n, err)
	}
	if g.made == nil {
		g.made = map[launches]*graph{}
	}
	made := &graph{Graph: captured}
	g.made[key] = made
	return made, nil
}

// drop destroys all graphs. Nothing on the stream may be one of them.
func (g *graphs) drop() (err error) {
	for _, made := range g.made {
		if e := made.Destroy(); err == nil {
			err = e
		}
	}
	clear(g.made)
	return err
}
