package listener

import (
	"encoding/binary"
	"io"
	"net"
	"time"
)

// HTTP/2 begins with this text of the client, and then has frames in both directions (RFC 9113,
// sections 3.4 and 4.1).
const (
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader = 9

	dataFrame, headersFrame, resetFrame, continuationFrame = 0, 1, 3, 9

	endStream, padded = 1, 8 // flags
)

// A client may send this many frames at once, and as many a second. So floods of frames that
// cause no response cost little, such as resets (CVE-2023-44487), pings and settings. Each KiB of
// a header counts as one frame more, and all streams at once may have the longest header. A
// response pays for the header of its request and for some frames, and its body for one per
// bodyPerFrame bytes. A frame with as many bytes of the body of an open stream is free, unless
// it may be padding.
const (
	framesAtOnce      = 500.0
	framesPerSecond   = 100.0
	framesPerResponse = 4.0
	bodyPerFrame      = 128
)

// frames follows the frames of a connection. net/http gives no access to them.
type frames struct {
	begun    int // bytes of the preface; -1 is HTTP/1.1
	in, out  frameScanner
	open     map[uint32]float64 // the cost of the streams whose response has not ended
	last     uint32             // the last stream that the client opened
	budget   float64            // frames that the client may send
	budgeted time.Time          // at first zero, so that the budget begins full
}

// frameScanner finds the frames in one direction.
type frameScanner struct {
	header [frameHeader]byte
	have   int // bytes of the header
	rest   int // bytes of the frame that are still to come
}

// scan calls a function for each frame that begins in the next bytes.
func (s *frameScanner) scan(text []byte, begins func(kind, flags byte, size int, stream uint32)) {
	for len(text) > 0 {
		if s.rest > 0 {
			skipped := min(s.rest, len(text))
			s.rest -= skipped
			text = text[skipped:]
			continue
		}
		copied := copy(s.header[s.have:], text)
		s.have += copied
		text = text[copied:]
		if s.have == frameHeader {
			s.have = 0
			s.rest = int(binary.BigEndian.Uint32(s.header[:4]) >> 8)
			begins(s.header[3], s.header[4], s.rest, binary.BigEndian.Uint32(s.header[5:])&^(1<<31))
		}
	}
}

// isHTTP2 reports whether the preface of HTTP/2 has arrived.
func (f *frames) isHTTP2() bool { return f.begun == len(preface) }

// skipPreface returns what follows the preface.
func (f *frames) skipPreface(text []byte) []byte {
	if f.begun < 0 || f.isHTTP2() {
		return text
	}
	expected := preface[f.begun:]
	expected = expected[:min(len(text), len(expected))]
	if string(text[:len(expected)]) != expected {
		f.begun = -1
		return nil
	}
	if f.begun += len(expected); f.isHTTP2() {
		f.open = map[uint32]float64{}
	}
	return text[len(expected):]
}

// received follows what the client has sent. The error is not nil if the connection is closed
// for it.
func (c *connection) received(text []byte) error {
	if c.frames.begun < 0 {
		return nil
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	f := &c.frames
	text = f.skipPreface(text)
	if f.begun < 0 && c.state != nil && c.state.NegotiatedProtocol == "h2" {
		_ = c.tcp.Close() // before net/http takes it for HTTP/1.1
		return io.EOF
	}
	if !f.isHTTP2() || len(text) == 0 {
		return nil
	}
	now := time.Now()
	f.budget = min(c.of.burst, f.budget+now.Sub(f.budgeted).Seconds()*framesPerSecond)
	f.budgeted = now
	f.in.scan(text, func(kind, flags byte, size int, stream uint32) {
		cost := 1 + float64(size>>10)
		if kind == dataFrame && size >= bodyPerFrame && flags&padded == 0 && f.open[stream] > 0 {
			cost = 0
		}
		f.budget -= cost
		switch {
		case kind == headersFrame && stream > f.last:
			f.last = stream
			f.open[stream] = cost
			c.wait(1)
		case kind == continuationFrame && f.open[stream] > 0:
			f.open[stream] += cost
		case kind == resetFrame:
			c.ended(stream)
		}
	})
	if f.budget < 0 && !c.cut {
		c.cutOff()
	}
	if c.cut {
		return net.ErrClosed
	}
	return nil
}

// sent follows what the client can read.
func (c *connection) sent(text []byte) {
	f := &c.frames
	if !f.isHTTP2() {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	f.out.scan(text, func(kind, flags byte, size int, stream uint32) {
		switch kind {
		case headersFrame:
			c.responded()
		case dataFrame:
			f.budget += float64(size / bodyPerFrame)
		case resetFrame:
			c.ended(stream)
			return
		default:
			return
		}
		if flags&endStream != 0 {
			f.budget += framesPerResponse + f.open[stream]
			c.ended(stream)
		}
	})
}

// ended follows the end of a stream. The caller holds the lock.
func (c *connection) ended(stream uint32) {
	if c.frames.open[stream] > 0 {
		delete(c.frames.open, stream)
		c.wait(-1)
	}
}
