package gate

import (
	"bytes"
	"compress/gzip"
	"io"
	"sync"
)

// compressFrom is the minimum size in bytes of a compressed list.
const compressFrom = 1 << 10

// compressor compresses lists at the fastest level: level 6 saves 13 % more in 2.6 times the
// time. Writers are reused, because a new one allocates 1.2 MB. There are few, because none
// is held while a client reads.
type compressor struct{ writers sync.Pool }

func newCompressor() *compressor {
	return &compressor{sync.Pool{New: func() any {
		writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // fails only for an unknown level
		return writer
	}}}
}

// Compress returns the gzip of a list, or nil if it is too short.
func (g *Gate) Compress(text []byte) []byte {
	if len(text) < compressFrom {
		return nil
	}
	return g.compressor.compress(text)
}

// compress compresses in memory, where writing cannot fail.
func (z *compressor) compress(text []byte) []byte {
	writer := z.writers.Get().(*gzip.Writer) //nolint:forcetypeassert // the pool holds nothing else
	defer z.writers.Put(writer)
	var compressed bytes.Buffer
	writer.Reset(&compressed)
	_, _ = writer.Write(text)
	_ = writer.Close()
	return compressed.Bytes()
}
