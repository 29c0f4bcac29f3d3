package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTheKernelsFilesAreRead(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease": "6.1.0\n",
		"proc/meminfo":              "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
		"proc/self/cgroup":          "0::/system.slice/troupe.service\n",
		"sys/fs/cgroup/system.slice/troupe.service/cpu.max":    "max 100000\n",
		"sys/fs/cgroup/system.slice/cpu.max":                   "250000 100000\n",
		"sys/fs/cgroup/system.slice/troupe.service/memory.max": "1073741824\n",
		"sys/fs/cgroup/system.slice/memory.max":                "max\n",
		"sys/fs/cgroup/memory.max":                             "8589934592\n",
		"sys/kernel/mm/transparent_hugepage/enabled":           "always [madvise] never\n",
		"proc/driver/nvidia/version":                           "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\nGCC version: 12\n",
		"proc/driver/nvidia/gpus/0000:01:00.0/information":     "Model: \t\t NVIDIA H200\nIRQ: 1\n",
		"dev/nvidia0":                           "",
		"usr/lib/x86_64-linux-gnu/libcuda.so.1": "",
		".dockerenv":                            "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var m machine
	linuxFacts(&m, root)
	if m.Kernel != "6.1.0" || m.Memory != 16<<30 || m.CPULimit != 2.5 || m.MemoryLimit != 1<<30 || m.HugePages != "madvise" || !m.Container ||
		m.Driver != "580.95.05" || !slices.Equal(m.GPUs, []string{"NVIDIA H200"}) || !m.Nodes || filepath.Base(m.LibCUDA) != "libcuda.so.1" || m.OpenFiles <= 0 {
		t.Errorf("%+v", m)
	}
	m = machine{}
	linuxFacts(&m, t.TempDir())
	if m.Memory != 0 || m.CPULimit != 0 || m.Driver != "" || m.Nodes {
		t.Errorf("of nothing: %+v", m)
	}
}
