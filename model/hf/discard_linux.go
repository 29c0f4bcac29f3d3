package hf

import "golang.org/x/sys/unix"

// discard gives memory back to the system, which has zeros there afterwards, and says whether it did.
func discard(memory []byte) bool { return unix.Madvise(memory, unix.MADV_DONTNEED) == nil }
