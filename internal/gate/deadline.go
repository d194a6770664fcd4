package gate

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
)

// deadline is a context that ends at a time or with its parent, as a context of
// [context.WithDeadline] does. It sets a timer only when somebody waits for its end. Most
// requests end before, and a timer for each would be a twelfth of the CPU time of a read.
type deadline struct {
	context.Context // the parent

	mu     sync.Mutex
	at     time.Time
	timed  context.Context // has the timer; nil: nobody waits
	cancel context.CancelFunc
}

// Deadline returns the time.
func (d *deadline) Deadline() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at, true
}

// Done returns a channel that is closed at the end. It sets the timer.
func (d *deadline) Done() <-chan struct{} { return d.wait().Done() }

// Err returns why the context has ended, or nil. It sets the timer.
func (d *deadline) Err() error { return d.wait().Err() }

// Value returns a value of the parent. Package context finds the timer by it, and then needs
// no goroutine for each child.
func (d *deadline) Value(key any) any {
	d.mu.Lock()
	timed := d.timed
	d.mu.Unlock()
	if timed != nil {
		return timed.Value(key)
	}
	return d.Context.Value(key)
}

// wait returns the context with the timer.
func (d *deadline) wait() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil {
		d.timed, d.cancel = context.WithDeadline(d.Context, d.at)
	}
	return d.timed
}

// move changes the time, when nobody waits.
func (d *deadline) move(at time.Time) {
	d.stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at, d.timed, d.cancel = at, nil, nil
}

// stop stops the timer, if there is one.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

// unreadBodyTime is the limit of [limitUnreadBody].
const unreadBodyTime = time.Second

// limitUnreadBody limits the time that net/http waits for the rest of a body before it
// sends the response. Otherwise it would wait for its ReadTimeout, so that clients
// without a key could occupy all connections. The next request sets another deadline.
func limitUnreadBody(c *gin.Context) {
	if c.Request.ContentLength != 0 && !requestOf(c).bodyRead {
		// If this fails, so does the response.
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(unreadBodyTime))
	}
}

// extendDeadline extends the deadline of a request by the time spent on reading the body, on
// an injected delay or on a wait. The first depends on the client, and each has its own limit. It
// restarts the write timeout of the HTTP server for the same reason. The request reads from
// the primary again. If the server has begun to shut down meanwhile, it closes the connection.
func (g *Gate) extendDeadline(c *gin.Context, took time.Duration) {
	state := requestOf(c)
	state.move(state.at.Add(took))
	c.Request = c.Request.WithContext(state)
	if limit := writeTimeout(state); limit > 0 {
		setWriteDeadline(c, limit)
	}
	g.closeAtShutDown(c)
}

// writeTimeout returns the write timeout of the HTTP server, or 0 if it has none.
func writeTimeout(ctx context.Context) time.Duration {
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok {
		return server.WriteTimeout
	}
	return 0
}

// setWriteDeadline limits the time from now to send the response. The HTTP server
// must have a WriteTimeout, so that it resets the deadline for the next request.
func setWriteDeadline(c *gin.Context, limit time.Duration) {
	// If this fails, so does the response.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(limit))
}

// liftWriteDeadline ends the limit of [setWriteDeadline] while the server has nothing to send. Over
// HTTP/2 a deadline that passes resets the stream, although nothing is being written.
func liftWriteDeadline(c *gin.Context) {
	// If this fails, so does the response.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Time{})
}

// A client must read a page of more than drainFrom bytes within drainPause plus a second
// for each minDrainBytesSec of it. Smaller pages fit into the buffers of the kernel.
const (
	drainFrom        = 64 << 10
	drainPause       = 2 * time.Second
	minDrainBytesSec = 64 << 10
)

// drainTime returns the time within which a client must read a page of this size in bytes.
func drainTime(size int64) time.Duration {
	return drainPause + time.Duration(size)*time.Second/minDrainBytesSec
}

// limitDrain limits the time in which a client without a key must read a response of this
// size in bytes.
func limitDrain(c *gin.Context, size int) {
	if limit := writeTimeout(c.Request.Context()); limit > 0 {
		setWriteDeadline(c, min(limit, drainTime(int64(size))))
	}
}
