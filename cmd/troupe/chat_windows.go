package main

import (
	"io"
	"os"

	"golang.org/x/sys/windows"
)

// enableEscapes makes a console understand escape sequences, which older ones do only when told.
func enableEscapes(w io.Writer) {
	f, ok := w.(*os.File)
	if !ok {
		return
	}
	var mode uint32
	if windows.GetConsoleMode(windows.Handle(f.Fd()), &mode) == nil {
		_ = windows.SetConsoleMode(windows.Handle(f.Fd()), mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	}
}
