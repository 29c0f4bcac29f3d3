package hf

import "golang.org/x/sys/unix"

// discard gives memory back to the system, and says whether it did. Memory that is no file's has zeros
// afterwards; a file's is read again when it is touched.
func discard(memory []byte) bool { return unix.Madvise(memory, unix.MADV_DONTNEED) == nil }
