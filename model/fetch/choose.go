package fetch

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/model/safetensors"
)

// file is a file in a repository.
type file struct {
	path string // with slashes; safe: see safeFile
	size int64  // in bytes; −1 unknown
	sum  string // its sha256, or git's sha1 of it where git itself keeps it; "" unknown
}

var (
	// quantPattern finds a quantisation in a file's name, where it stands between - and . as a rule.
	quantPattern = regexp.MustCompile(`(?:^|[-._ /])((?:UD-)?(?:T?Q[0-9]_[0-9A-Z]+(?:_[0-9A-Z]+)*|Q[0-9]|IQ[0-9]_[A-Z]+|BF16|FP?16|FP?32|MXFP4(?:_MOE)?|NVFP4))(?:$|[-. /])`)
	// beyondPattern finds quantisations with types that the runtime does not compute with.
	beyondPattern = regexp.MustCompile(`^(?:UD-)?(?:IQ[123]|TQ[0-9]|NVFP4|Q4_0_[48]_[48])`)
	splitPattern  = regexp.MustCompile(`(?i)-([0-9]{5})-of-([0-9]{5})\.gguf$`)
)

// preferred is the order in which a repository's files are considered when the name gives no
// quantisation: first what most people take, a good text for little memory; then up from there; then
// down. Those that the runtime cannot compute are not in it.
var preferred = []string{
	"Q4_K_M", "Q4_K_S", "Q8_0", "Q5_K_M", "Q5_K_S", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_L", "Q4_K_XL", "UD-Q4_K_XL",
	"Q5_K_L", "Q6_K_L", "IQ4_XS", "IQ4_NL", "MXFP4", "MXFP4_MOE", "Q3_K_XL", "Q3_K_L", "Q3_K_M", "Q3_K_S", "F16", "BF16", "F32",
	"Q2_K_L", "Q2_K", "Q2_K_S",
}

// quantOf reads the quantisation out of a file's path, "" if it shows none.
func quantOf(p string) string {
	stem := strings.ToUpper(splitPattern.ReplaceAllString(p, ".gguf"))
	stem = strings.TrimSuffix(stem, ".GGUF")
	found := ""
	// Matches may share the sign between them, so each search begins at the last one's end.
	for {
		at := quantPattern.FindStringSubmatchIndex(stem)
		if at == nil {
			break
		}
		found = stem[at[2]:at[3]]
		stem = stem[at[3]:]
	}
	if rest, ok := strings.CutPrefix(found, "FP"); ok { // FP16 is F16
		return "F" + rest
	}
	return found
}

// isSplit says whether a file is part of a model that lies in several.
func isSplit(p string) bool { return splitPattern.MatchString(p) }

// models are those files that may be models, in order: no projectors and importance matrices, and of
// those that are split only the first part.
func models(files []file) []file {
	var out []file
	for _, f := range files {
		base := strings.ToLower(path.Base(f.path))
		if !isGGUFName(f.path) || strings.HasPrefix(base, "mmproj") || strings.Contains(base, "imatrix") {
			continue
		}
		if m := splitPattern.FindStringSubmatch(f.path); m != nil && m[1] != "00001" {
			continue
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return out
}

// choose picks the file that a name means among those that are there. where says where, in errors:
// "the hub", "the cache".
func choose(n Name, files []file, where string) (file, error) {
	there := models(files)
	var none file
	if n.File != "" {
		for _, f := range files {
			if f.path == n.File {
				return whole(n, f, there)
			}
		}
		return none, fmt.Errorf("%s has no file %s in %s%s%s", where, n.File, n.Repo, at(n), listed(there))
	}
	if len(there) == 0 {
		return none, noModel(n, files, where)
	}
	if n.Quant != "" {
		var found []file
		for _, f := range there {
			if quantOf(f.path) == n.Quant {
				found = append(found, f)
			}
		}
		if len(found) == 0 { // a tag of another kind, which stands in the name all the same
			tag := regexp.MustCompile(`(?i)(^|[-./])` + regexp.QuoteMeta(n.Quant) + `($|[-./])`)
			for _, f := range there {
				if tag.MatchString(f.path) {
					found = append(found, f)
				}
			}
		}
		switch {
		case len(found) > 0 && beyondPattern.MatchString(n.Quant):
			return none, fmt.Errorf("%s has types that are not supported: take %s in another quantisation, such as Q3_K_M, or write %s/FILE if the file is not what its name says%s",
				n.Quant, n.Repo, n.Repo, listed(there))
		case len(found) == 1:
			return whole(n, found[0], there)
		case len(found) == 0:
			return none, fmt.Errorf("%s has no %s in %s%s%s", where, n.Quant, n.Repo, at(n), listed(there))
		}
		return none, fmt.Errorf("%s has several files of %s in %s%s: write %s/FILE to pick one%s", where, n.Quant, n.Repo, at(n), n.Repo, listed(found))
	}
	if len(there) == 1 {
		return whole(n, there[0], there)
	}
	for _, q := range preferred {
		var found []file
		for _, f := range there {
			if quantOf(f.path) == q && !isSplit(f.path) {
				found = append(found, f)
			}
		}
		switch {
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			return none, fmt.Errorf("%s has several models in %s%s: write %s/FILE to pick one%s", where, n.Repo, at(n), n.Repo, listed(found))
		}
	}
	return none, fmt.Errorf("%s has none of the usual quantisations in %s%s: write %s:QUANTISATION or %s/FILE to pick a file%s", where, n.Repo, at(n), n.Repo, n.Repo, listed(there))
}

// whole refuses a model that lies in several files.
func whole(n Name, f file, there []file) (file, error) {
	if !isSplit(f.path) {
		return f, nil
	}
	m := splitPattern.FindStringSubmatch(f.path)
	one := slices.DeleteFunc(slices.Clone(there), func(f file) bool { return isSplit(f.path) })
	hint := "merge the parts with llama-gguf-split --merge and give the merged file's path"
	if len(one) > 0 {
		hint = "take one that is not" + listed(one) + "\nor " + hint
	}
	return file{}, fmt.Errorf("%s in %s%s is split over %s files, which is not supported: %s",
		path.Base(f.path), n.Repo, at(n), strings.TrimLeft(m[2], "0"), hint)
}

// hasGGUF is the error of a repository with GGUF files, which come before safetensors, where these are needed.
func hasGGUF(n Name, files []file) error {
	what := "has GGUF files"
	if slices.ContainsFunc(files, func(f file) bool { return isTop(f) && safetensors.IsWeights(f.path) }) {
		what = "has GGUF files, which come before its safetensors unless these are fetched by other means and given by their folder"
	}
	return &GGUFError{n.String(), what}
}

// noModel says what a repository without GGUF files has instead.
func noModel(n Name, files []file, where string) error {
	for _, f := range files {
		if isTop(f) && safetensors.IsWeights(f.path) {
			how := "leave the quantisation out"
			if kinds := map[string]string{"Q8_0": "q8_0", "Q4_0": "q4_0", "Q4_K": "q4_k", "Q4_K_S": "q4_k", "Q4_K_M": "q4_k"}; kinds[n.Quant] != "" {
				how = fmt.Sprintf("give %s --quantization %s", n.Repo, kinds[n.Quant])
			}
			return fmt.Errorf("%s has no GGUF file in %s%s, but weights in safetensors, which are quantised as they are loaded: %s, "+
				"or look for a repository with GGUF files of it at https://huggingface.co/models?other=base_model:quantized:%s", where, n.Repo, at(n), how, n.Repo)
		}
	}
	for _, f := range files {
		if safetensors.IsPickle(path.Base(f.path)) {
			return fmt.Errorf("%s has weights in %s%s only as a pickle (%s), which is not read: a pickle is a program that runs when it is loaded. "+
				"Look for a repository with GGUF files of it at https://huggingface.co/models?other=base_model:quantized:%s, or for a revision with safetensors", where, n.Repo, at(n), f.path, n.Repo)
		}
	}
	return fmt.Errorf("%s has no GGUF file in %s%s, and no model in safetensors", where, n.Repo, at(n))
}

func at(n Name) string {
	if n.Revision == "" {
		return ""
	}
	return " at " + n.Revision
}

// listed ends an error with what is there.
func listed(files []file) string {
	const most = 30
	if len(files) == 0 {
		return "; there is no GGUF file"
	}
	var b strings.Builder
	b.WriteString("; there is:")
	for i, f := range files {
		if i == most {
			fmt.Fprintf(&b, "\n  … and %d more", len(files)-most)
			break
		}
		b.WriteString("\n  " + f.path)
		if q := quantOf(f.path); q != "" {
			b.WriteString("  " + q)
		}
		if f.size >= 0 {
			b.WriteString("  " + SizeText(f.size))
		}
		if isSplit(f.path) {
			b.WriteString("  (split)")
		}
	}
	return b.String()
}

// SizeText writes a number of bytes for people, as in "98.4 MiB": 98.4 MB would be ambiguous beside what
// operating systems show, so it is powers of 1024 with their own names.
func SizeText(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
