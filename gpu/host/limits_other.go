//go:build !amd64

package host

// probesOf are what measures the given instructions.
func probesOf(instructions) probes { return probes{read: readGo} }
