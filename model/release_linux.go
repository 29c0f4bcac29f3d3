package model

import "golang.org/x/sys/unix"

// release takes pages out of this process; they stay in the system's cache of the file while there is
// room.
func release(mapping []byte) { _ = unix.Madvise(mapping, unix.MADV_DONTNEED) }
