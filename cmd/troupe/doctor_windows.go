package main

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// memoryStatus is MEMORYSTATUSEX of sysinfoapi.h.
type memoryStatus struct {
	length, load                            uint32
	totalPhys, availPhys                    uint64
	totalPage, availPage                    uint64
	totalVirtual, availVirtual, availExtend uint64
}

// systemFacts adds what Windows tells.
func systemFacts(m *machine) {
	v := windows.RtlGetVersion()
	m.Kernel = fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
	if m.CPU == "" {
		m.CPU = os.Getenv("PROCESSOR_IDENTIFIER")
	}
	s := memoryStatus{length: uint32(unsafe.Sizeof(memoryStatus{}))}
	if ok, _, _ := windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx").Call(uintptr(unsafe.Pointer(&s))); ok != 0 {
		m.Memory, m.Available = int64(s.totalPhys), int64(s.availPhys)
	}
	if dir, err := windows.GetSystemDirectory(); err == nil {
		library := filepath.Join(dir, "nvcuda.dll")
		if _, err := os.Stat(library); err == nil {
			m.LibCUDA, m.Nodes = library, true // installed with the driver, for a device
		}
	}
}
