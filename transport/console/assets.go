package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"path"
)

//go:embed page
var page embed.FS

// Policy is the Content-Security-Policy of the page: all of it comes from this server, nothing is
// inline, and no other page may frame it.
const Policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// Index is the asset that is the page itself.
const Index = "console.html"

// Asset is one of the page's files. It holds no data of the server's.
type Asset struct {
	Content []byte
	Type    string // media type
	ETag    string
}

// Assets returns the page's files by their names.
func Assets() map[string]Asset {
	all := map[string]Asset{}
	files, err := fs.ReadDir(page, "page")
	if err != nil {
		panic(err) // they are part of the program
	}
	for _, f := range files {
		content, err := fs.ReadFile(page, path.Join("page", f.Name()))
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		all[f.Name()] = Asset{Content: content, Type: mediaType(f.Name()), ETag: `"` + hex.EncodeToString(sum[:8]) + `"`}
	}
	return all
}

// mediaType does not ask the machine's own tables, which may say anything.
func mediaType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "application/octet-stream"
}
