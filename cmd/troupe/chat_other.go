//go:build !windows

package main

import "io"

// enableEscapes has nothing to do where terminals understand escape sequences anyway.
func enableEscapes(io.Writer) {}
