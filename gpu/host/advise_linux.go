package host

import "golang.org/x/sys/unix"

// adviseHugePages asks for large pages, which weights that are read from end to end are read faster
// from. It is a wish: systems may not grant it.
func adviseHugePages(memory []byte) { _ = unix.Madvise(memory, unix.MADV_HUGEPAGE) }
