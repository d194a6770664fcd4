package gate

import (
	"bytes"
	"compress/gzip"
	"io"
	"sync"
)

// compressFrom is the minimum size in bytes of a compressed list.
const compressFrom = 1 << 10

// compressors compress at the fastest level: level 6 saves 13 % more in 2.6 times the time. They
// are reused, because a new one allocates 1.2 MB. There are few, because none is held while a
// client reads.
var compressors = sync.Pool{New: func() any {
	writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // fails only for an unknown level
	return writer
}}

// Compress returns the gzip of a list, or nil if it is too short.
func Compress(text []byte) []byte {
	if len(text) < compressFrom {
		return nil
	}
	writer := compressors.Get().(*gzip.Writer) //nolint:forcetypeassert // the pool holds nothing else
	defer compressors.Put(writer)
	var compressed bytes.Buffer
	writer.Reset(&compressed)
	_, _ = writer.Write(text) // to memory, where it cannot fail
	_ = writer.Close()
	return compressed.Bytes()
}
