package localpg

import (
	"context"
	"path/filepath"
)

// FindIn looks for binaries below a directory instead of on this machine: in path, in
// lib/*/bin, and in cache after a download from the mirror.
func FindIn(ctx context.Context, dir, mirror, digest string) (Binaries, error) {
	as, err := ServerUser("")
	if err != nil {
		return Binaries{}, err
	}
	return finder{
		path:      filepath.Join(dir, "path"),
		installed: []string{filepath.Join(dir, "lib", "*", "bin")},
		cache:     filepath.Join(dir, "cache"),
		mirror:    mirror,
		digest:    digest,
		user:      as,
	}.find(ctx)
}
