package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/troupe-llm/troupe/model/demo"
	"github.com/troupe-llm/troupe/model/fetch"
)

// completionCmd prints a script that makes a shell complete commands, flags, their values and models. All but
// the models in the cache is in the script: it calls the program for these alone.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish,powershell" help:"The shell: bash, zsh, fish or powershell."`
}

// Help implements kong.HelpProvider.
func (*completionCmd) Help() string {
	return `Prints a script that completes commands, flags, their values, models and files. To have it in every
new shell:

  troupe completion bash > ~/.local/share/bash-completion/completions/troupe
  troupe completion zsh > "${fpath[1]}/_troupe"
  troupe completion fish > ~/.config/fish/completions/troupe.fish
  troupe completion powershell >> $PROFILE

To try it in this one:

  source <(troupe completion bash)`
}

// Run implements the command.
func (c *completionCmd) Run(ctx *kong.Context, stdout io.Writer) error {
	var b bytes.Buffer
	completionScripts[c.Shell](&b, ctx.Model)
	_, err := stdout.Write(b.Bytes())
	return err
}

var completionScripts = map[string]func(*bytes.Buffer, *kong.Application){
	"bash": writeBash, "zsh": writeZsh, "fish": writeFish, "powershell": writePowerShell,
}

// completionNode is a place on the command line: after the program's name, or after a command's.
type completionNode struct {
	path     string // "/serve"; empty for the program
	help     string
	commands []completionNode
	flags    []completionFlag
	// Of arguments: their values, if there are only some, and whether they may be files.
	values []string
	files  bool
	cached bool   // they may be models that are in the cache
	name   string // of the first argument; empty: there is none
}

// modelsOf are the models that a command takes besides those that are in the cache.
func modelsOf(path string) (names []string) {
	if path == "/rm" {
		return nil
	}
	if path != "/pull" {
		names = append(names, demo.Name)
	}
	for _, k := range fetch.Catalogue() {
		names = append(names, k.Short)
	}
	return names
}

type completionFlag struct {
	names []string
	help  string
	value string // what it is called; empty: the flag takes none
	// Values are one of these, or a file, or anything.
	values []string
	files  bool
}

func completionTree(n *kong.Node, path string) completionNode {
	c := completionNode{path: path, help: summary(n.Help)}
	for _, child := range n.Children {
		if !child.Hidden {
			c.commands = append(c.commands, completionTree(child, path+"/"+child.Name))
		}
	}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			flag := completionFlag{names: []string{"--" + f.Name}, help: summary(f.Help)}
			if f.Short != 0 {
				flag.names = append(flag.names, "-"+string(f.Short))
			}
			switch f.Tag.Negatable {
			case "":
			case "_":
				flag.names = append(flag.names, "--no-"+f.Name)
			default:
				flag.names = append(flag.names, "--"+f.Tag.Negatable)
			}
			if takesValue(f) {
				flag.value = f.FormatPlaceHolder()
				if f.Enum != "" {
					flag.values = f.EnumSlice()
				}
				flag.files = isFile(flag.value)
			}
			c.flags = append(c.flags, flag)
		}
	}
	for _, a := range n.Positional {
		if c.name == "" {
			c.name = strings.ToUpper(a.Name)
		}
		if a.Enum != "" {
			c.values = append(c.values, a.EnumSlice()...)
		}
		if a.Name == "model" {
			c.cached = true
			c.values = append(c.values, modelsOf(path)...)
		}
		c.files = c.files || path != "/rm" && (isFile(strings.ToUpper(a.Name)) || isFile(a.Tag.PlaceHolder)) // which takes names
	}
	return c
}

// isFile says whether a value with this name may be the name of a file or folder.
func isFile(placeholder string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(placeholder, func(r rune) bool { return r < 'A' || r > 'Z' }), func(word string) bool {
		switch word {
		case "FILE", "FILES", "FOLDER", "DIR", "PATH", "MODEL":
			return true
		}
		return false
	})
}

// summary is the first sentence of a help text, without its full stop.
func summary(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(first, ".")
}

// each calls f for the node and all below it.
func (c completionNode) each(f func(completionNode)) {
	f(c)
	for _, child := range c.commands {
		child.each(f)
	}
}

// paths are those of all commands.
func (c completionNode) paths() (all []string) {
	c.each(func(n completionNode) {
		if n.path != "" {
			all = append(all, n.path)
		}
	})
	return all
}

// commandName is the last part of a command's path.
func (c completionNode) commandName() string { return c.path[strings.LastIndexByte(c.path, '/')+1:] }

// shellQuote quotes for POSIX shells.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// writeBash writes for bash, from 3.2 on, which macOS has.
func writeBash(b *bytes.Buffer, app *kong.Application) {
	root := completionTree(app.Node, "")
	b.WriteString(`# bash completion for troupe
_troupe() {
    local IFS=$' \t\n' cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at='' words='' files='' cached='' i
    # Bash has the colon of org/repo:Q8_0 as a word of its own. What is before the last one it keeps.
    local whole=$cur n=$COMP_CWORD
    while ((n > 1)) && [[ ${COMP_WORDS[n]} == ':' || ${COMP_WORDS[n-1]} == ':' ]]; do
        ((n--))
        whole=${COMP_WORDS[n]}$whole
    done
    local kept=''
    [[ $whole == "$cur" ]] || kept=${whole%"${whole##*:}"}
    # Bash has the equals sign of --flag=value as a word of its own.
    if [[ $cur == '=' ]]; then
        cur=''
    elif [[ $prev == '=' && COMP_CWORD -ge 2 ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at/${COMP_WORDS[i]}" in
`)
	fmt.Fprintf(b, "            %s) at=\"$at/${COMP_WORDS[i]}\" ;;\n", strings.Join(root.paths(), " | "))
	b.WriteString(`        esac
    done
    case "$at $prev" in
`)
	root.each(func(n completionNode) {
		for _, f := range n.flags {
			if f.value == "" {
				continue
			}
			for i, name := range f.names {
				if i > 0 {
					b.WriteString(" | ")
				} else {
					b.WriteString("        ")
				}
				b.WriteString(shellQuote(n.path + " " + name))
			}
			switch {
			case len(f.values) > 0:
				fmt.Fprintf(b, ") words=%s ;;\n", shellQuote(strings.Join(f.values, " ")))
			case f.files:
				b.WriteString(") files=yes ;;\n")
			default:
				b.WriteString(") return ;;\n")
			}
		}
	})
	b.WriteString(`        *)
            case "$at" in
`)
	root.each(func(n completionNode) {
		var flags, words []string
		for _, f := range n.flags {
			flags = append(flags, f.names...)
		}
		for _, c := range n.commands {
			words = append(words, c.commandName())
		}
		words = append(words, n.values...)
		files, cached := "", ""
		if n.files {
			files = "yes"
		}
		if n.cached {
			cached = "yes"
		}
		fmt.Fprintf(b, "                %s) if [[ $cur == -* ]]; then words=%s; else words=%s files=%s cached=%s; fi ;;\n",
			shellQuote(n.path), shellQuote(strings.Join(flags, " ")), shellQuote(strings.Join(words, " ")), shellQuote(files), shellQuote(cached))
	})
	b.WriteString(`            esac
            ;;
    esac
    if [[ $cached ]]; then
        words="$words "$(troupe list --names 2>/dev/null)
        COMPREPLY=($(compgen -W "$words" -- "$whole"))
        COMPREPLY=("${COMPREPLY[@]#"$kept"}")
    else
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    fi
    if [[ $files ]]; then
        compopt -o filenames 2>/dev/null
        IFS=$'\n'
        COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
complete -F _troupe troupe
`)
}

// zshText escapes for a description within a specification of _arguments.
var zshText = strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, ":", `\:`).Replace

func zshFunction(path string) string {
	return "_troupe" + strings.NewReplacer("/", "_", "-", "_").Replace(path)
}

// writeZsh writes for zsh: to be autoloaded from fpath, or sourced.
func writeZsh(b *bytes.Buffer, app *kong.Application) {
	root := completionTree(app.Node, "")
	b.WriteString(`#compdef troupe

_troupe_models() {
    local -a models
    models=("$@" ${(f)"$(troupe list --names 2>/dev/null)"})
    if (($#)); then
        _alternative 'models:model:compadd -a models' 'files:file:_files'
    else
        compadd -a models
    fi
}
`)
	root.each(func(n completionNode) {
		fmt.Fprintf(b, "\n%s() {\n", zshFunction(n.path))
		if len(n.commands) > 0 {
			b.WriteString("    local curcontext=\"$curcontext\" state line\n    typeset -A opt_args\n")
			b.WriteString("    _arguments -C")
		} else {
			b.WriteString("    _arguments")
		}
		for _, f := range n.flags {
			for _, name := range f.names {
				spec := name
				if f.value != "" {
					spec += "="
				}
				spec += "[" + zshText(f.help) + "]"
				if f.value != "" {
					spec += ":" + zshText(f.value) + ":"
					switch {
					case len(f.values) > 0:
						spec += "(" + strings.Join(f.values, " ") + ")"
					case f.files:
						spec += "_files"
					}
				}
				b.WriteString(" \\\n        " + shellQuote(spec))
			}
		}
		if len(n.commands) > 0 {
			b.WriteString(" \\\n        '1: :->command' '*:: :->argument'\n    case $state in\n    command)\n        local -a commands\n        commands=(\n")
			for _, c := range n.commands {
				fmt.Fprintf(b, "            %s\n", shellQuote(c.commandName()+":"+strings.ReplaceAll(c.help, ":", `\:`)))
			}
			b.WriteString("        )\n        _describe command commands\n        ;;\n    argument)\n        case $line[1] in\n")
			for _, c := range n.commands {
				fmt.Fprintf(b, "        %s) %s ;;\n", c.commandName(), zshFunction(c.path))
			}
			b.WriteString("        esac\n        ;;\n    esac\n}\n")
			return
		}
		if n.name != "" {
			action := " "
			switch {
			case n.cached:
				action = "{_troupe_models " + strings.Join(n.values, " ") + "}"
			case len(n.values) > 0:
				action = "(" + strings.Join(n.values, " ") + ")"
			case n.files:
				action = "_files"
			}
			b.WriteString(" \\\n        " + shellQuote("*:"+zshText(n.name)+":"+action))
		}
		b.WriteString("\n}\n")
	})
	b.WriteString(`
if [[ $funcstack[1] == _troupe ]]; then
    _troupe "$@"
else
    compdef _troupe troupe
fi
`)
}

// fishQuote quotes for fish, where only a backslash and a quote are special within quotes.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}

// writeFish writes for fish.
func writeFish(b *bytes.Buffer, app *kong.Application) {
	root := completionTree(app.Node, "")
	fmt.Fprintf(b, `# fish completion for troupe
function __troupe_at --description 'whether the command line is at this command'
    set -l at ''
    for word in (commandline -opc)[2..-1]
        if contains -- "$at/$word" %s
            set at "$at/$word"
        end
    end
    test "$at" = "$argv[1]"
end

complete -c troupe -f
`, strings.Join(root.paths(), " "))
	root.each(func(n completionNode) {
		at := "-n " + fishQuote("__troupe_at "+fishQuote(n.path))
		for _, c := range n.commands {
			fmt.Fprintf(b, "complete -c troupe %s -a %s -d %s\n", at, c.commandName(), fishQuote(c.help))
		}
		if len(n.values) > 0 {
			fmt.Fprintf(b, "complete -c troupe %s -a %s\n", at, fishQuote(strings.Join(n.values, " ")))
		}
		if n.cached {
			fmt.Fprintf(b, "complete -c troupe %s -a '(troupe list --names 2>/dev/null)' -d 'in the cache'\n", at)
		}
		if n.files {
			fmt.Fprintf(b, "complete -c troupe %s -F\n", at)
		}
		for _, f := range n.flags {
			for _, name := range f.names {
				long := "-l " + strings.TrimPrefix(name, "--")
				if !strings.HasPrefix(name, "--") {
					long = "-s " + strings.TrimPrefix(name, "-")
				}
				value := ""
				switch {
				case f.value == "":
				case len(f.values) > 0:
					value = " -x -a " + fishQuote(strings.Join(f.values, " "))
				case f.files:
					value = " -r -F"
				default:
					value = " -x"
				}
				fmt.Fprintf(b, "complete -c troupe %s %s%s -d %s\n", at, long, value, fishQuote(f.help))
			}
		}
	})
}

// psQuote quotes for PowerShell.
func psQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// writePowerShell writes for PowerShell, from 5 on.
func writePowerShell(b *bytes.Buffer, app *kong.Application) {
	root := completionTree(app.Node, "")
	list := func(words []string) string {
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = psQuote(w)
		}
		return strings.Join(quoted, ", ")
	}
	b.WriteString(`# PowerShell completion for troupe
Register-ArgumentCompleter -Native -CommandName 'troupe' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    # By place on the command line: what may be written there, and what it is.
    $words = @{
`)
	root.each(func(n completionNode) {
		fmt.Fprintf(b, "        %s = [ordered]@{\n", psQuote(n.path))
		for _, c := range n.commands {
			fmt.Fprintf(b, "            %s = %s\n", psQuote(c.commandName()), psQuote(c.help))
		}
		for _, v := range n.values {
			fmt.Fprintf(b, "            %s = %s\n", psQuote(v), psQuote(v))
		}
		for _, f := range n.flags {
			for _, name := range f.names {
				fmt.Fprintf(b, "            %s = %s\n", psQuote(name), psQuote(f.help))
			}
		}
		b.WriteString("        }\n")
	})
	b.WriteString("    }\n    # By place and flag: its values; none where they may be anything, as files.\n    $values = @{\n")
	root.each(func(n completionNode) {
		for _, f := range n.flags {
			if f.value == "" {
				continue
			}
			for _, name := range f.names {
				fmt.Fprintf(b, "        %s = @(%s)\n", psQuote(n.path+" "+name), list(f.values))
			}
		}
	})
	b.WriteString(`    }
    $at = ''
    $previous = ''
    foreach ($element in @($commandAst.CommandElements | Select-Object -Skip 1)) {
        if ($element.Extent.EndOffset -ge $cursorPosition) { break }
        $previous = $element.Extent.Text
        if ($words.ContainsKey("$at/$previous")) { $at = "$at/$previous" }
    }
    $head = ''
    if ($wordToComplete -match '^(--[^=]+)=(.*)$') {
        $previous = $Matches[1]
        $head = "$previous="
        $wordToComplete = $Matches[2]
    }
    $candidates = $words[$at]
    if ($values.ContainsKey("$at $previous")) {
        $candidates = [ordered]@{}
        foreach ($value in $values["$at $previous"]) { $candidates[$value] = $value }
    }
    foreach ($candidate in $candidates.GetEnumerator()) {
        if ($candidate.Key.StartsWith($wordToComplete)) {
            [System.Management.Automation.CompletionResult]::new($head + $candidate.Key, $candidate.Key, 'ParameterValue', $candidate.Value)
        }
    }
}
`)
}
