//go:build !amd64

package host

func availableInstructions() []instructions { return []instructions{portable} }
