package transport

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"
)

// Key is an API key that clients may use. The name stands for it in logs and metrics; the key
// itself appears nowhere.
type Key struct{ Name, Secret string }

// ParseKeys reads keys as the command line and the environment give them: `name:key`, or a key
// alone, which is then named by its place, "key-1" for the first. A key that itself holds a colon
// needs a name before it. Empty keys, and names or keys given twice, are errors.
func ParseKeys(given []string) ([]Key, error) {
	var keys []Key
	for i, g := range given {
		name, secret, named := strings.Cut(g, ":")
		if !named {
			name, secret = "key-"+strconv.Itoa(i+1), g
		}
		switch {
		case secret == "" || name == "":
			return nil, fmt.Errorf("API key %d: want a key, or name:key, and neither may be empty", i+1)
		case strings.ContainsFunc(g, func(r rune) bool { return r <= ' ' || r > '~' }):
			return nil, fmt.Errorf("API key %d: a key and its name must be printable ASCII without spaces", i+1)
		case slices.ContainsFunc(keys, func(k Key) bool { return k.Name == name || k.Secret == secret }):
			return nil, fmt.Errorf("API key %d (%s): its name or key is given twice", i+1, name)
		}
		keys = append(keys, Key{Name: name, Secret: secret})
	}
	return keys, nil
}

// keyring holds the keys as hashes, all of one length: comparing them tells nothing about the keys'
// own.
type keyring []hashedKey

type hashedKey struct {
	name string
	sum  [sha256.Size]byte
}

func newKeyring(keys []Key) keyring {
	ring := make(keyring, len(keys))
	for i, k := range keys {
		ring[i] = hashedKey{k.Name, sha256.Sum256([]byte(k.Secret))}
	}
	return ring
}

// find returns the name of the key in an Authorization header. It compares with every key, however
// early it finds the right one, so that the time tells nothing. An empty ring admits everybody.
func (ring keyring) find(authorization []byte) (name string, ok bool) {
	if len(ring) == 0 {
		return "", true
	}
	const scheme = "bearer "
	if len(authorization) < len(scheme) || !bytes.EqualFold(authorization[:len(scheme)], []byte(scheme)) {
		return "", false
	}
	sum := sha256.Sum256(bytes.TrimSpace(authorization[len(scheme):]))
	found := -1
	for i := range ring {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], ring[i].sum[:]), i, found)
	}
	if found < 0 {
		return "", false
	}
	return ring[found].name, true
}

// guarded says whether a path needs a key: all that computes or tells what was computed, and for whom.
// What monitors, load balancers and scrapers ask is open, as in vLLM.
func guarded(path string) bool {
	return strings.HasPrefix(path, "/v1/") || path == "/v1" || path == "/tokenize" || path == "/detokenize" || strings.HasPrefix(path, consoleAPI)
}

// CORS says which pages of other origins a browser lets use the server. In each list "*" stands for
// everything. Without Origins nothing is said, and browsers refuse.
type CORS struct {
	Origins, Methods, Headers []string
	// Credentials lets pages send cookies and client certificates.
	Credentials bool
}

// preflightAge is how long browsers may remember a preflight's answer, in seconds.
const preflightAge = "600"

// apply adds the headers for a request's origin. It answers preflight requests whole, and says so.
func (c *CORS) apply(ctx *fasthttp.RequestCtx) (answered bool) {
	origin := ctx.Request.Header.Peek("Origin")
	if len(origin) == 0 || len(c.Origins) == 0 {
		return false
	}
	h := &ctx.Response.Header
	method := ctx.Request.Header.Peek("Access-Control-Request-Method")
	preflight := ctx.IsOptions() && len(method) > 0
	anyOrigin := slices.Contains(c.Origins, "*")
	if anyOrigin && !c.Credentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Add("Vary", "Origin")
		if anyOrigin || slices.Contains(c.Origins, string(origin)) {
			h.SetBytesV("Access-Control-Allow-Origin", origin)
			if c.Credentials {
				h.Set("Access-Control-Allow-Credentials", "true")
			}
		}
	}
	if !preflight {
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
		return false
	}
	if slices.Contains(c.Methods, "*") {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS")
	} else {
		h.Set("Access-Control-Allow-Methods", strings.Join(c.Methods, ", "))
	}
	if asked := ctx.Request.Header.Peek("Access-Control-Request-Headers"); slices.Contains(c.Headers, "*") {
		if len(asked) > 0 {
			h.SetBytesV("Access-Control-Allow-Headers", asked)
		}
	} else {
		h.Set("Access-Control-Allow-Headers", strings.Join(c.Headers, ", "))
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	ctx.SetStatusCode(fasthttp.StatusNoContent)
	return true
}
