package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// systemFacts adds what the kernel tells in files: see proc(5), and for control groups
// https://docs.kernel.org/admin-guide/cgroup-v2.html.
func systemFacts(m *machine) { linuxFacts(m, "/") }

// linuxFacts reads them below a root, which is another one in tests.
func linuxFacts(m *machine, root string) {
	read := func(path string) string {
		b, _ := os.ReadFile(filepath.Join(root, path))
		return strings.TrimSpace(string(bytes.ToValidUTF8(b, nil)))
	}
	m.Kernel = read("proc/sys/kernel/osrelease")
	for line := range strings.Lines(read("proc/meminfo")) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			m.Memory = kib << 10
		}
	}
	for _, path := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			m.Container = true
		}
	}
	m.Container = m.Container || os.Getenv("KUBERNETES_SERVICE_HOST") != ""

	// The limits of this process's group and of those above it; within a container the root is its own.
	own := ""
	for line := range strings.Lines(read("proc/self/cgroup")) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = path
		}
	}
	for dir := filepath.Clean("/" + own); ; dir = filepath.Dir(dir) {
		if f := strings.Fields(read(filepath.Join("sys/fs/cgroup", dir, "cpu.max"))); len(f) == 2 {
			m.limitCPU(f[0], f[1])
		}
		if n, err := strconv.ParseInt(read(filepath.Join("sys/fs/cgroup", dir, "memory.max")), 10, 64); err == nil {
			m.limitMemory(n)
		}
		if dir == "/" {
			break
		}
	}
	// Version 1, which older systems have.
	m.limitCPU(read("sys/fs/cgroup/cpu/cpu.cfs_quota_us"), read("sys/fs/cgroup/cpu/cpu.cfs_period_us"))
	if n, err := strconv.ParseInt(read("sys/fs/cgroup/memory/memory.limit_in_bytes"), 10, 64); err == nil {
		m.limitMemory(n)
	}

	if _, after, ok := strings.Cut(read("sys/kernel/mm/transparent_hugepage/enabled"), "["); ok {
		m.HugePages, _, _ = strings.Cut(after, "]")
	}

	if found := regexp.MustCompile(`\d+\.\d+(\.\d+)*`).FindString(read("proc/driver/nvidia/version")); found != "" {
		m.Driver = found
	}
	cards, _ := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*/information"))
	for _, path := range cards {
		b, _ := os.ReadFile(path)
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(line, "Model:"); ok {
				m.GPUs = append(m.GPUs, strings.TrimSpace(name))
			}
		}
	}
	for _, path := range []string{"dev/nvidia0", "dev/dxg"} { // the latter is WSL's
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			m.Nodes = true
		}
	}
	for _, pattern := range []string{"usr/lib/*-linux-gnu/libcuda.so.1", "usr/lib64/libcuda.so.1", "usr/lib/libcuda.so.1", "usr/lib/wsl/lib/libcuda.so.1", "run/opengl-driver/lib/libcuda.so.1"} {
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 && m.LibCUDA == "" {
			m.LibCUDA = found[0]
		}
	}

	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		m.OpenFiles, m.OpenFilesMost = int64(min(files.Cur, 1<<62)), int64(min(files.Max, 1<<62))
	}
}

// limitCPU takes a quota and its period, in microseconds, if they are any.
func (m *machine) limitCPU(quota, period string) {
	q, err := strconv.ParseFloat(quota, 64) // "max", or −1 in version 1: no limit
	p, err2 := strconv.ParseFloat(period, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return
	}
	if limit := q / p; m.CPULimit == 0 || limit < m.CPULimit {
		m.CPULimit = limit
	}
}

// limitMemory takes a limit in bytes, unless it is beyond what there is.
func (m *machine) limitMemory(n int64) {
	if n > 0 && n < m.Memory && (m.MemoryLimit == 0 || n < m.MemoryLimit) {
		m.MemoryLimit = n
	}
}
