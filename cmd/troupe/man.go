package main

import (
	"bytes"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"
)

// manCmd prints the manual, which is made from the same model of the command line as --help.
type manCmd struct {
	Markdown bool `help:"Print it as Markdown instead: docs/flags.md."`
}

// Help implements kong.HelpProvider.
func (*manCmd) Help() string {
	return `Prints the manual page troupe(1). Examples:

  troupe man | man -l -
  troupe man > /usr/local/share/man/man1/troupe.1`
}

// Run implements the command.
func (c *manCmd) Run(ctx *kong.Context, stdout io.Writer) error {
	var b bytes.Buffer
	if c.Markdown {
		writeMarkdown(&b, ctx.Model)
	} else {
		writeMan(&b, ctx.Model, thisBuild().Version, buildDate())
	}
	_, err := stdout.Write(b.Bytes())
	return err
}

// buildDate is the day of the revision that this program was built from; empty when it is not known.
func buildDate() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" && len(s.Value) >= len("2006-01-02") {
				return s.Value[:len("2006-01-02")]
			}
		}
	}
	return ""
}

// environment are the variables that the program looks at.
var environment = []struct{ name, help string }{
	{"TROUPE_API_KEY, VLLM_API_KEY", "API keys, with commas between them: those that serve accepts, and of which chat sends the first. The latter counts when the former is not set."},
	{"TROUPE_CACHE", "The folder for models fetched from URLs, instead of the user's cache folder."},
	{"HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE", "Where models fetched by name are kept and come from, as for Hugging Face's own tools."},
	{"NO_COLOR", "No colours when it is set."},
}

// exits are what exit statuses mean for every command.
var exits = []struct{ name, help string }{
	{"0", "Success; for a server, a shutdown that was asked for."},
	{"1", "The command could not do its work, or a server's device was lost to its process."},
	{"2", "The flags make no sense; nothing has been done."},
}

// commandsOf lists the commands that do something, in the order of their declaration.
func commandsOf(app *kong.Application) []*kong.Node { return app.Leaves(true) }

// usage is a command's line of use.
func usage(n *kong.Node) string {
	words := []string{n.FullPath()}
	for _, a := range n.Positional {
		words = append(words, argumentName(a))
	}
	return strings.Join(words, " ")
}

// argumentName is how an argument is written.
func argumentName(a *kong.Positional) string {
	name := strings.ToUpper(a.Name)
	if a.IsCumulative() {
		name += "…"
	}
	if !a.Required {
		name = "[" + name + "]"
	}
	return name
}

// flagName is how a flag is written.
func flagName(f *kong.Flag) string {
	name := "--" + f.Name
	switch {
	case f.Tag.Negatable == "_":
		name = "--[no-]" + f.Name
	case f.Tag.Negatable != "":
		name += ", --" + f.Tag.Negatable
	}
	if f.Short != 0 {
		name = fmt.Sprintf("-%c, %s", f.Short, name)
	}
	if takesValue(f) {
		name += "=" + f.FormatPlaceHolder()
	}
	return name
}

func takesValue(f *kong.Flag) bool { return !f.IsBool() && !f.IsCounter() }

// flagGroup is flags under a heading; empty for those of no group.
type flagGroup struct {
	name  string
	flags []*kong.Flag
}

// groupsOf sorts a command's own flags by their groups. The flags of all commands are not among them.
func groupsOf(n *kong.Node) (groups []flagGroup) {
	for _, f := range n.Flags {
		if f.Hidden {
			continue
		}
		name := ""
		if f.Group != nil {
			name = f.Group.Title
		}
		i := 0
		for i < len(groups) && groups[i].name != name {
			i++
		}
		if i == len(groups) {
			groups = append(groups, flagGroup{name: name})
		}
		groups[i].flags = append(groups[i].flags, f)
	}
	return groups
}

// paragraph is a part of a command's long help.
type paragraph struct {
	text string
	code bool // to be shown as it is
}

// paragraphs takes a long help apart: blank lines are between paragraphs, and what is indented is code.
func paragraphs(detail string) (all []paragraph) {
	for part := range strings.SplitSeq(strings.Trim(detail, "\n"), "\n\n") {
		switch {
		case strings.TrimSpace(part) == "":
		case strings.HasPrefix(part, "  "):
			lines := strings.Split(part, "\n")
			for i := range lines {
				lines[i] = strings.TrimPrefix(lines[i], "  ")
			}
			all = append(all, paragraph{strings.Join(lines, "\n"), true})
		default:
			all = append(all, paragraph{strings.Join(strings.Fields(part), " "), false})
		}
	}
	return all
}

// lowerFirst begins what follows a name with a small letter, unless it is a word of capitals.
func lowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' || s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// writeMan writes the manual page, in the macros of man(7). date may be empty.
func writeMan(b *bytes.Buffer, app *kong.Application, version, date string) {
	line := func(macro string, words ...string) {
		b.WriteString("." + macro)
		for _, w := range words {
			b.WriteString(` "` + strings.ReplaceAll(roff(w), `"`, `\(dq`) + `"`)
		}
		b.WriteByte('\n')
	}
	text := func(s string) { b.WriteString(fill(s)) }
	entry := func(name, help string) {
		line("TP")
		line("B", name)
		text(help)
	}
	b.WriteString(".\\\" Made by troupe man.\n")
	line("TH", "TROUPE", "1", date, "troupe "+version, "Troupe")
	line("SH", "NAME")
	b.WriteString(`troupe \- ` + roff(lowerFirst(strings.TrimSuffix(app.Help, "."))) + "\n")
	line("SH", "SYNOPSIS")
	for i, n := range commandsOf(app) {
		if i > 0 {
			line("br")
		}
		line("B", usage(n)+" [flags]")
	}
	line("SH", "DESCRIPTION")
	for _, p := range paragraphs(app.Detail) {
		manParagraph(b, p)
	}
	text("Flags may stand before and after arguments, and their values after an equals sign or a space.")
	for _, f := range app.Flags {
		entry(flagName(f), f.Help)
	}
	for _, n := range commandsOf(app) {
		line("SH", strings.ToUpper(n.FullPath()))
		line("B", usage(n)+" [flags]")
		line("PP")
		text(n.Help)
		for _, p := range paragraphs(n.Detail) {
			manParagraph(b, p)
		}
		for _, a := range n.Positional {
			entry(strings.ToUpper(a.Name), a.Help)
		}
		for _, g := range groupsOf(n) {
			if g.name != "" {
				line("SS", g.name)
			}
			for _, f := range g.flags {
				entry(flagName(f), f.Help)
			}
		}
	}
	line("SH", "ENVIRONMENT")
	for _, e := range environment {
		entry(e.name, e.help)
	}
	line("SH", "EXIT STATUS")
	for _, e := range exits {
		entry(e.name, e.help)
	}
}

func manParagraph(b *bytes.Buffer, p paragraph) {
	if !p.code {
		b.WriteString(".PP\n" + fill(p.text))
		return
	}
	b.WriteString(".PP\n.RS 4\n.nf\n")
	for l := range strings.SplitSeq(p.text, "\n") {
		b.WriteString(guard(roff(l)) + "\n")
	}
	b.WriteString(".fi\n.RE\n")
}

// roff escapes what would be markup or typography in a text. Hyphens must stay such, so that flags can be
// searched and copied.
var roff = strings.NewReplacer(`\`, `\e`, "-", `\-`, "^", `\(ha`, "~", `\(ti`, "`", `\(ga`, "'", `\(aq`, "…", `\&...`).Replace

// fill writes a paragraph in lines of a width that people can edit.
func fill(s string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(roff(s)) {
		switch {
		case column == 0:
			word = guard(word)
		case column+1+len(word) > 78:
			b.WriteByte('\n')
			word = guard(word)
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}

// guard keeps a line of text from being taken for a request.
func guard(s string) string {
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		return `\&` + s
	}
	return s
}

// writeMarkdown writes the same as a page of the documentation.
func writeMarkdown(b *bytes.Buffer, app *kong.Application) {
	cell := strings.NewReplacer("|", `\|`, "\n", " ").Replace
	code := func(s string) string { return "`" + cell(s) + "`" }
	table := func(head string, rows func(row func(name, help string))) {
		fmt.Fprintf(b, "| %s | |\n| --- | --- |\n", head)
		rows(func(name, help string) { fmt.Fprintf(b, "| %s | %s |\n", code(name), cell(prose(help))) })
		b.WriteByte('\n')
	}
	b.WriteString("# Commands and flags\n\nThis page is made by `troupe man --markdown`; `troupe COMMAND --help` says the same.\n")
	b.WriteString("Flags may stand before and after arguments, and their values after an equals sign or a space.\n\n")
	table("command", func(row func(string, string)) {
		for _, n := range commandsOf(app) {
			row(usage(n), n.Help)
		}
	})
	table("flag of every command", func(row func(string, string)) {
		for _, f := range app.Flags {
			row(flagName(f), f.Help)
		}
	})
	for _, n := range commandsOf(app) {
		fmt.Fprintf(b, "## %s\n\n%s\n\n", n.FullPath(), prose(n.Help))
		for _, p := range paragraphs(n.Detail) {
			if p.code {
				fmt.Fprintf(b, "```\n%s\n```\n\n", p.text)
			} else {
				fmt.Fprintf(b, "%s\n\n", prose(p.text))
			}
		}
		if len(n.Positional) > 0 {
			table("argument", func(row func(string, string)) {
				for _, a := range n.Positional {
					row(argumentName(a), a.Help)
				}
			})
		}
		for _, g := range groupsOf(n) {
			if g.name != "" {
				fmt.Fprintf(b, "### %s\n\n", g.name)
			}
			table("flag", func(row func(string, string)) {
				for _, f := range g.flags {
					row(flagName(f), f.Help)
				}
			})
		}
	}
	b.WriteString("## Environment\n\n")
	table("variable", func(row func(string, string)) {
		for _, e := range environment {
			row(e.name, e.help)
		}
	})
	b.WriteString("## Exit status\n\n")
	table("status", func(row func(string, string)) {
		for _, e := range exits {
			row(e.name, e.help)
		}
	})
	b.Truncate(b.Len() - 1) // one line feed at the end
}

// prose keeps Markdown from reading a text's characters as its own.
var prose = strings.NewReplacer("<", "&lt;", "*", `\*`, "[", `\[`, "]", `\]`, "_", `\_`).Replace
