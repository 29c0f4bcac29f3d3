package fetch

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// Settings is how the environment has this package set up, for those who ask what is wrong with it.
type Settings struct {
	Endpoint  string // of the hub
	Offline   bool
	Cache     string // of the hub's models
	TokenFrom string // the variable or file with the hub's token; empty: there is none
	Files     string // the folder for models from URLs: Dir
}

// ReadSettings reads the environment. Its error names the variable that is wrong.
func ReadSettings() (Settings, error) {
	dir, err := Dir()
	if err != nil {
		return Settings{}, err
	}
	h, err := openHub()
	if err != nil {
		return Settings{Files: dir}, err
	}
	s := Settings{Endpoint: h.endpoint.String(), Offline: h.offline, Cache: h.cache, Files: dir}
	if h.token != "" {
		s.TokenFrom = h.tokenFrom
	}
	return s, nil
}

// FreeSpace is how many bytes this user may still write to the disk on which a folder lies, or would
// lie: the folder need not exist.
func FreeSpace(dir string) (int64, error) {
	for {
		free, err := freeSpace(dir)
		parent := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			return free, err
		}
		dir = parent
	}
}
