package host

import (
	"bytes"
	"os"
	"strconv"
)

// availableMemory is how many bytes a process may still use before others are swapped out: the
// kernel's MemAvailable, or what a control group (version 2) leaves, if that is less. 0 is unknown.
func availableMemory() int64 {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	available := int64(0)
	for line := range bytes.Lines(info) {
		if f := bytes.Fields(line); len(f) >= 2 && string(f[0]) == "MemAvailable:" {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			available = n << 10
		}
	}
	limit, ok := readNumber("/sys/fs/cgroup/memory.max")
	if used, ok2 := readNumber("/sys/fs/cgroup/memory.current"); ok && ok2 {
		available = min(available, max(0, limit-used+inactiveFiles()))
	}
	return available
}

func readNumber(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// inactiveFiles is how much of the group's memory is file pages that can be dropped at once.
func inactiveFiles() int64 {
	stat, err := os.ReadFile("/sys/fs/cgroup/memory.stat")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(stat) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == "inactive_file" {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return n
		}
	}
	return 0
}

// processorName is what /proc/cpuinfo calls the processor, "" if it doesn't say.
func processorName() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(info) {
		if key, value, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(key)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}
