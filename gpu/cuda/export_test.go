//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

// UseFake is useFake, for tests outside the package, which may import what imports it.
var UseFake = useFake
