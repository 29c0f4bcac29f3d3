package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// version is set by the linker for releases: -ldflags "-X main.version=v1.2.3". Otherwise it is what
// the Go tool knows of the module.
var version = ""

// versionCmd says which version this is.
type versionCmd struct {
	JSON bool `name:"json" help:"As a JSON object."`
}

// build is what is known of this program.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with changes beyond the revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	return b
}

// Run implements the command.
func (c *versionCmd) Run(stdout io.Writer) error {
	b := thisBuild()
	if c.JSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(b)
	}
	_, err := fmt.Fprintln(stdout, b)
	return err
}

// String is the build in one line.
func (b build) String() string {
	revision := ""
	if len(b.Revision) >= 12 {
		revision = " " + b.Revision[:12]
		if b.Modified {
			revision += "+"
		}
	}
	return fmt.Sprintf("troupe %s%s (%s, %s)", b.Version, revision, b.Go, b.Platform)
}

// versionFlag is the same as a flag, which many try first.
type versionFlag bool

// BeforeReset implements kong's hook: nothing of the command is done.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	if _, err := fmt.Fprintln(app.Stdout, thisBuild()); err != nil {
		return err
	}
	app.Exit(exitOK)
	return nil
}
