package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// vanishedStreams is row 46. The clients of nine streams vanish: no packet reaches them,
// and they send none. The server frees their places within 30 seconds. Another stream
// gets a heartbeat meanwhile.
func vanishedStreams(ctx context.Context, f *fixture) (string, error) {
	const vanished, freedWithin = 9, 30 * time.Second
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	admin, err := freeAddr(ctx)
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, db, db.url(), "PETSTORE_ADMIN_ADDR="+admin)
	if err != nil {
		return "", err
	}
	metrics := &client{base: "http://" + admin}
	stays, err := s.openStream(ctx)
	if err != nil {
		return "", err
	}
	heartbeat := make(chan error, 1)
	go func() {
		_, err := stays.ReadString('\n')
		heartbeat <- err
	}()
	for range vanished {
		stream, err := s.openStream(ctx)
		if err == nil {
			err = onSocket(stream.Conn, discardPackets)
		}
		if err != nil {
			return "", err
		}
	}
	if err := metrics.wantStreams(ctx, 1+vanished); err != nil {
		return "", err
	}
	took, err := eventually(ctx, freedWithin, func() error { return metrics.wantStreams(ctx, 1) })
	if err == nil {
		err = <-heartbeat
	}
	return fmt.Sprintf("the places of %d streams are free after %s; another one is open", vanished, round(took)), err
}

// wantStreams returns an error unless the metrics count this many streams.
func (c *client) wantStreams(ctx context.Context, count int) error {
	resp, err := c.want(ctx, http.StatusOK, "GET", "/metrics", "")
	if line := fmt.Sprintf("\npetstore_event_streams %d\n", count); err == nil && !strings.Contains(string(resp.body), line) {
		err = fmt.Errorf("the metrics do not contain %q", strings.TrimSpace(line))
	}
	return err
}

// openedStream is a connection with a stream of events, after its first line.
type openedStream struct {
	net.Conn
	*bufio.Reader
}

// openStream opens a stream of events. Its client sends no keepalive probes.
func (s *deployment) openStream(ctx context.Context) (*openedStream, error) {
	dialer := net.Dialer{KeepAlive: -1}
	conn, err := dialer.DialContext(ctx, "tcp", s.api.addr)
	if err != nil {
		return nil, err
	}
	s.cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(rowTimeout)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, "GET /events HTTP/1.1\r\nHost: petstore\r\nAccept: text/event-stream\r\nAuthorization: Bearer "+s.key+"\r\n\r\n"); err != nil {
		return nil, err
	}
	opened := &openedStream{conn, bufio.NewReader(conn)}
	for line := ""; !strings.HasPrefix(line, "retry:"); {
		if line, err = opened.ReadString('\n'); err != nil {
			return nil, fmt.Errorf("opening a stream: %w", err)
		}
	}
	if _, err := opened.ReadString('\n'); err != nil { // the end of the chunk
		return nil, fmt.Errorf("opening a stream: %w", err)
	}
	return opened, nil
}

// onSocket calls a function with the descriptor of a connection.
func onSocket(conn net.Conn, do func(fd int) error) error {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("not a socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}
