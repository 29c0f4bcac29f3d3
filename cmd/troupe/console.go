package main

import "github.com/troupe-llm/troupe/transport/console"

// consoleOn says whether there is a live page: it shows statistics, and without them there is none.
func (c *serveCmd) consoleOn() bool { return !c.DisableConsole && !c.DisableLogStats }

// page makes the live page; nil when there is to be none.
func (c *serveCmd) page(model string) *console.Console {
	if !c.consoleOn() {
		return nil
	}
	return console.New(console.Options{Version: thisBuild().Version, Model: model, MaxSeqs: c.DataParallelSize * c.sequences()})
}
