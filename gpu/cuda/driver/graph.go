//go:build cuda && cgo && linux && (amd64 || arm64)

package driver

/*
#include <cuda.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// Graph is launches that go to a stream by one call: an executable graph of CUDA's. The zero Graph is none.
type Graph struct{ exec C.CUgraphExec }

// streamOf is the driver's handle of a stream, which cu does not export.
func streamOf(s cu.Stream) C.CUstream { return *(*C.CUstream)(unsafe.Pointer(&s)) }

// Capture makes a graph of what record puts on a stream, of which nothing is done yet. Record must not wait, nor
// allocate or free anything; the calling goroutine must be locked to its thread. Whatever the error, the stream
// does again what it is given, unless the driver fails altogether.
func Capture(s cu.Stream, record func() error) (Graph, error) {
	stream := streamOf(s)
	// What other threads of the process do in contexts of their own is no concern of this one's capture.
	if err := result(C.cuStreamBeginCapture(stream, C.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); err != nil {
		return Graph{}, fmt.Errorf("beginning to capture: %w", err)
	}
	recorded := record()
	var graph C.CUgraph
	ended := result(C.cuStreamEndCapture(stream, &graph))
	if graph == nil && ended == nil {
		ended = errors.New("the driver gives no graph")
	}
	var g Graph
	err := recorded
	switch {
	case err != nil:
	case ended != nil:
		err = fmt.Errorf("ending to capture: %w", ended)
	default:
		if err = result(C.cuGraphInstantiateWithFlags(&g.exec, graph, 0)); err != nil {
			g, err = Graph{}, fmt.Errorf("instantiating a graph: %w", err)
		}
	}
	if graph != nil {
		if destroyed := result(C.cuGraphDestroy(graph)); destroyed != nil && err == nil {
			err = fmt.Errorf("destroying what a graph was made of: %w", destroyed)
		}
	}
	if err != nil && g.exec != nil {
		err = errors.Join(err, g.Destroy())
		g = Graph{}
	}
	return g, err
}

// Launch puts the graph's launches on a stream.
func (g Graph) Launch(s cu.Stream) error { return result(C.cuGraphLaunch(g.exec, streamOf(s))) }

// Destroy gives the graph's memory back. What it has launched goes on.
func (g Graph) Destroy() error { return result(C.cuGraphExecDestroy(g.exec)) }
