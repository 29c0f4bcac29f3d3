package hf

import (
	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// ownMemory is how memory that is no file's is mapped: as this process's alone, since what may be shared with
// others stays taken when it is discarded.
const ownMemory = mmap.COPY

// discard gives memory back to the system, and says whether it did. Memory that is no file's has zeros
// afterwards; a file's is read again when it is touched.
func discard(memory []byte) bool { return unix.Madvise(memory, unix.MADV_DONTNEED) == nil }
