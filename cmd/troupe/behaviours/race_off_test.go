//go:build !race

package behaviours

const raceEnabled = false
