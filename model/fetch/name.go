package fetch

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name is what a model is called on the hub: a repository, and what picks one GGUF file in it.
type Name struct {
	Repo     string // org/repo
	Revision string // a branch, tag or commit; "" for the main branch
	File     string // the file's path in the repository; "" when Quant picks it, or the default order
	Quant    string // a quantisation such as Q4_K_M, in capitals; "" with File, or for the default order
}

// NameError says what is wrong with a model's name, and what to write instead.
type NameError struct{ Name, What string }

func (e *NameError) Error() string { return fmt.Sprintf("the model's name %q %s", e.Name, e.What) }

// mainBranch is the revision of a name that gives none.
const mainBranch = "main"

func (n Name) revision() string {
	if n.Revision == "" {
		return mainBranch
	}
	return n.Revision
}

// String is the name as ParseName reads it.
func (n Name) String() string {
	s := n.Repo
	switch {
	case n.File != "":
		s += "/" + n.File
	case n.Quant != "":
		s += ":" + n.Quant
	}
	if n.Revision != "" {
		s += "@" + n.Revision
	}
	return s
}

// hubHosts are the names under which people know the hub; they may begin a name, with https:// or
// without.
var hubHosts = []string{"huggingface.co", "www.huggingface.co", "hf.co"}

// hubPrefix cuts what says that a name is the hub's: hf://, hf.co/, https://huggingface.co/ and the like.
func hubPrefix(s string) (rest string, web, ok bool) {
	if rest, ok := strings.CutPrefix(s, "hf://"); ok {
		return rest, false, true
	}
	rest, web = strings.CutPrefix(s, "https://")
	if !web {
		rest, web = strings.CutPrefix(s, "http://")
	}
	host, path, _ := strings.Cut(rest, "/")
	for _, h := range hubHosts {
		if strings.EqualFold(host, h) {
			return path, web, true
		}
	}
	return s, false, false
}

// ParseName reads a name on the hub:
//
//	org/repo                      the quantisation that suits most
//	org/repo:Q4_K_M               another one
//	org/repo/file.gguf            a file, also as org/repo:file.gguf
//	org/repo:Q4_K_M@revision      of a branch, a tag or a commit
//
// Before it may stand hf.co/ or https://huggingface.co/, and then it may also be the address of a
// file's or a folder's page (/blob/main/…, /resolve/main/…, /tree/main). Its error is a *NameError.
func ParseName(s string) (Name, error) {
	rest, web, isHub := hubPrefix(s)
	wrong := func(format string, args ...any) (Name, error) {
		return Name{}, &NameError{Name: s, What: fmt.Sprintf(format, args...)}
	}
	var n Name
	if web {
		u, err := url.Parse("https://hub/" + rest)
		if err != nil {
			return wrong("is not an address: write org/repo")
		}
		rest = strings.TrimPrefix(u.EscapedPath(), "/") // ?download=true and #anchors say nothing of the file
	}
	if isHub {
		parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
		if len(parts) > 3 && (parts[2] == "blob" || parts[2] == "resolve" || parts[2] == "raw" || parts[2] == "tree") {
			n.Revision = parts[3]
			rest = strings.Join(append(parts[:2:2], parts[4:]...), "/")
			if parts[2] == "tree" {
				rest = strings.Join(parts[:2], "/")
			}
		} else {
			rest = strings.Join(parts, "/")
		}
		if web { // each part by itself: a revision may hold an escaped slash
			var err error
			if n.Revision, err = url.PathUnescape(n.Revision); err != nil {
				return wrong("is not an address: write org/repo")
			}
			if rest, err = url.PathUnescape(rest); err != nil {
				return wrong("is not an address: write org/repo")
			}
		}
	}
	base := rest
	if i := strings.IndexAny(rest, ":@"); i >= 0 {
		base = rest[:i]
		for rest = rest[i:]; rest != ""; {
			sign, value := rest[0], rest[1:]
			rest = ""
			if i := strings.IndexAny(value, ":@"); i >= 0 {
				value, rest = value[:i], value[i:]
			}
			switch {
			case value == "":
				return wrong("has nothing behind %q: leave that out, or write org/repo:Q4_K_M or org/repo@revision", sign)
			case sign == '@' && n.Revision != "":
				return wrong("has two revisions, %q and %q: give one", n.Revision, value)
			case sign == '@':
				n.Revision = value
			case n.Quant != "" || n.File != "":
				return wrong("picks a file twice: give one quantisation or one file")
			case isGGUFName(value):
				n.File = value
			default:
				n.Quant = strings.ToUpper(value)
			}
		}
	}
	parts := strings.SplitN(base, "/", 3)
	if len(parts) < 2 {
		return wrong("is not one of the hub's, which are org/repo")
	}
	n.Repo = parts[0] + "/" + parts[1]
	switch parts[0] {
	case "datasets", "spaces", "kernels":
		return wrong("is one of the hub's %s, not of its models", parts[0])
	}
	if !validRepo(n.Repo) {
		return wrong("is not one of the hub's: org and repo are letters, digits, single - and ., and _, at most 96 together")
	}
	if len(parts) == 3 {
		switch {
		case n.File != "" || n.Quant != "":
			return wrong("picks a file twice: give one quantisation or one file")
		case !isGGUFName(parts[2]):
			return wrong("names %q in the repository %s, which is no .gguf file: write org/repo/file.gguf", parts[2], n.Repo)
		}
		n.File = parts[2]
	}
	switch {
	case n.File != "" && !safeFile(n.File):
		return wrong("holds a file name that is none on every system: give the path as the repository's page shows it")
	case n.Quant != "" && !tagPattern.MatchString(n.Quant):
		return wrong("has the quantisation %q, which should be like Q4_K_M", n.Quant)
	case n.Revision != "" && isGGUFName(n.Revision):
		return wrong("has a file behind its revision: write org/repo/file.gguf@revision")
	case n.Revision != "" && !validRevision(n.Revision):
		return wrong("has the revision %q, which is no branch, tag or commit", n.Revision)
	}
	return n, nil
}

func isGGUFName(s string) bool { return len(s) > 5 && strings.EqualFold(s[len(s)-5:], ".gguf") }

var (
	repoPart    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	tagPattern  = regexp.MustCompile(`^[A-Z0-9][A-Z0-9_.-]{0,63}$`)
	commitHash  = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha256Sum   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	deviceNames = regexp.MustCompile(`(?i)^(con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])(\..*)?$`) // of Windows
)

// validRepo follows the hub's own rules, which also make models--org--repo a unique folder.
func validRepo(repo string) bool {
	org, name, _ := strings.Cut(repo, "/")
	for _, part := range []string{org, name} {
		if !repoPart.MatchString(part) || strings.HasSuffix(part, "-") || strings.HasSuffix(part, ".") {
			return false
		}
	}
	return len(repo) <= 96 && !strings.Contains(repo, "--") && !strings.Contains(repo, "..") && !strings.HasSuffix(repo, ".git")
}

// validRevision refuses what git refuses in a branch's name, and what would be no file below refs.
func validRevision(s string) bool {
	return len(s) <= 250 && !strings.ContainsAny(s, "~^:@") && safeFile(s)
}

// safeFile says whether a path with slashes from outside stays inside the folder that it is put in,
// and is a good name on every system.
func safeFile(s string) bool {
	if len(s) > 500 || !utf8.ValidString(s) || strings.ContainsAny(s, "\\:@<>|\"?*") || strings.ContainsFunc(s, unicode.IsControl) {
		return false
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || strings.Trim(part, ".") == "" || strings.HasSuffix(part, ".") || strings.TrimSpace(part) != part ||
			len(part) > 200 || deviceNames.MatchString(part) {
			return false
		}
	}
	return true
}
