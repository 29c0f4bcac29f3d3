package main

import "golang.org/x/sys/unix"

// systemFacts adds what sysctl(3) tells.
func systemFacts(m *machine) {
	if name, err := unix.Sysctl("machdep.cpu.brand_string"); err == nil {
		m.CPU = name
	}
	if release, err := unix.Sysctl("kern.osrelease"); err == nil {
		m.Kernel = release
	}
	if n, err := unix.SysctlUint64("hw.memsize"); err == nil {
		m.Memory = int64(n)
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		m.OpenFiles, m.OpenFilesMost = int64(min(files.Cur, 1<<62)), int64(min(files.Max, 1<<62))
	}
}
