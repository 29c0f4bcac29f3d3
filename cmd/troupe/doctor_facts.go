package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/cpu"

	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model/fetch"
)

// lookAround finds out about this machine.
func lookAround(port int) machine {
	m := baseFacts()
	m.CPU, m.Available = host.ProcessorName(), host.AvailableMemory()
	m.Settings, m.SettingsErr = fetch.ReadSettings()
	for _, dir := range []string{m.Settings.Files, m.Settings.Cache} {
		if dir == "" {
			continue
		}
		f := folder{Path: dir, Writable: writable(dir)}
		var err error
		if f.Free, err = fetch.FreeSpace(dir); err != nil {
			f.Free = -1
		}
		m.Folders = append(m.Folders, f)
	}
	m.Port, m.PortTaken = port, taken(port)
	systemFacts(&m)
	return m
}

func parentOf(dir string) string { return filepath.Dir(dir) }

// features are the instructions that kernels for quantised weights are written with.
func features() (all []string) {
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"AVX", cpu.X86.HasAVX}, {"AVX2", cpu.X86.HasAVX2}, {"FMA", cpu.X86.HasFMA}, {"AVX-512", cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW},
		{"AVX-512 VNNI", cpu.X86.HasAVX512VNNI}, {"AVX-VNNI", cpu.X86.HasAVXVNNI}, {"AMX", cpu.X86.HasAMXInt8},
		{"NEON", cpu.ARM64.HasASIMD}, {"dot product", cpu.ARM64.HasASIMDDP}, {"SVE", cpu.ARM64.HasSVE},
		// Go does not ask Apple's system, whose processors of this kind all have them.
		{"NEON, dot product", runtime.GOOS == "darwin" && runtime.GOARCH == "arm64" && !cpu.ARM64.HasASIMD},
	} {
		if f.has {
			all = append(all, f.name)
		}
	}
	return all
}

// taken says why a port is not free; empty: it is.
func taken(port int) string {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ln, err := net.Listen("tcp", address)
	if err == nil {
		ln.Close()
		return ""
	}
	const winInUse = syscall.Errno(10048) // WSAEADDRINUSE
	if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, winInUse) {
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/ping", nil); err == nil {
		if response, err := http.DefaultClient.Do(r); err == nil {
			response.Body.Close()
			if response.Header.Get("Server") == "troupe" {
				return "another Troupe serves there"
			}
		}
	}
	return "another program has it"
}
