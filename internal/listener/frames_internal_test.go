package listener

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"

	"petstore/internal/tools/need"
)

// TestFrameScanner finds the same frames, however their bytes are split.
func TestFrameScanner(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	framer := http2.NewFramer(&text, nil)
	for _, err := range []error{
		framer.WriteSettings(), framer.WriteData(7, true, make([]byte, 300)), framer.WritePing(false, [8]byte{}), framer.WriteRSTStream(1<<31-1, http2.ErrCodeCancel),
	} {
		need.OK(t, err)
	}
	want := []string{"4 0 0 0", "0 1 300 7", "6 0 8 0", "3 0 4 2147483647"}
	for size := 1; size <= text.Len(); size++ {
		var scanner frameScanner
		var got []string
		for rest := text.Bytes(); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			scanner.scan(rest[:min(size, len(rest))], func(kind, flags byte, size int, stream uint32) {
				got = append(got, fmt.Sprint(kind, flags, size, stream))
			})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("in pieces of %d bytes (-want +got):\n%s", size, diff)
		}
	}
}

// TestPreface tells HTTP/2 from HTTP/1.1, however the bytes are split.
func TestPreface(t *testing.T) {
	t.Parallel()
	for text, isHTTP2 := range map[string]bool{
		preface + "rest": true, "POST / HTTP/1.1\r\n": false, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\rrest": false,
	} {
		for size := 1; size <= len(text); size++ {
			var f frames
			after := ""
			for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
				after += string(f.skipPreface([]byte(rest[:min(size, len(rest))])))
			}
			if f.isHTTP2() != isHTTP2 || isHTTP2 && after != "rest" {
				t.Errorf("%q in pieces of %d bytes: HTTP/2 is %t, and %q follows", text, size, f.isHTTP2(), after)
			}
		}
	}
}

// boundedBurst is the burst of [bounded], where a header may have 4 KiB.
const boundedBurst = framesAtOnce + 4*maxStreams

// TestFloodsOfFrames: the server closes a connection with many frames that cause no response.
func TestFloodsOfFrames(t *testing.T) {
	t.Parallel()
	for name, flood := range map[string]func(*http2Peer) error{
		"pings":          func(p *http2Peer) error { return p.framer.WritePing(false, [8]byte{}) },
		"settings":       func(p *http2Peer) error { return p.framer.WriteSettings() },
		"window updates": func(p *http2Peer) error { return p.framer.WriteWindowUpdate(0, 1) },
		"priorities":     func(p *http2Peer) error { return p.framer.WritePriority(1, http2.PriorityParam{}) },
		"unknown frames": func(p *http2Peer) error { return p.framer.WriteRawFrame(99, 0, 0, nil) },
		"resets": func(p *http2Peer) error {
			return errors.Join(p.request("/reset"), p.framer.WriteRSTStream(p.last-1, http2.ErrCodeCancel))
		},
		"data of a closed stream": func(p *http2Peer) error {
			if p.last == 0 {
				p.get("/reset")
				if err := p.framer.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
					return err
				}
			}
			return p.framer.WriteData(1, false, make([]byte, bodyPerFrame))
		},
		"padding": func(p *http2Peer) error {
			if p.last == 0 {
				p.get("/body")
			}
			return p.framer.WriteDataPadded(1, false, nil, make([]byte, 255))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBoundedTLS(t, 1)
			go b.ignore() // the resets of some requests come late
			p := dialHTTP2(t, b.limited.Addr().String())
			for range int(2 * boundedBurst) {
				if flood(p) != nil { // the server has closed the connection
					break
				}
			}
			b.until(func(l *Limited) bool { return l.evicted == 1 })
		})
	}
}

// TestRequestsAreNoFlood: the responses of a client pay for its frames.
func TestRequestsAreNoFlood(t *testing.T) {
	t.Parallel()
	b := startBoundedTLS(t, 1)
	client := newClient(t)
	for range int(2 * boundedBurst) {
		done := b.request(client, "/", "")
		b.handled("/")
		b.finish()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	b.wantEvicted(0)
}
