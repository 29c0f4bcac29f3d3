package host

import (
	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// ownMemory is how memory that is no file's is mapped: as this process's alone, since what may be shared with
// others has large pages on few systems.
const ownMemory = mmap.COPY

// adviseHugePages asks for large pages, which weights that are read from end to end are read faster
// from. It is a wish: systems may not grant it.
func adviseHugePages(memory []byte) { _ = unix.Madvise(memory, unix.MADV_HUGEPAGE) }
