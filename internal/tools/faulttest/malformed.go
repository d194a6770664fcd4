package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// malformedRequests is row 16: the server rejects malformed HTTP (RFC 9110, 9112) in time
// and never parses the bytes after it as a request. It also rejects huge bodies, values and
// URLs, with little memory.
func malformedRequests(ctx context.Context, f *fixture) (string, error) {
	const inTime, moreMemory = 12 * time.Second, 100 << 20
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	cases := rawRequests(s.key)
	slowest, failures := make([]time.Duration, len(cases)), make([]error, len(cases))
	var group sync.WaitGroup
	for i, test := range cases {
		group.Go(func() {
			began := time.Now()
			failures[i] = test.rejected(ctx, s.api.addr, inTime)
			slowest[i] = time.Since(began)
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		return "", err
	}

	before, err := s.api.memory("VmRSS")
	if err != nil {
		return "", err
	}
	large, err := s.largeRequests(ctx)
	if err != nil {
		return "", err
	}
	peak, err := s.api.memory("VmHWM")
	if err != nil {
		return "", err
	}
	if peak-before > moreMemory {
		return "", fmt.Errorf("memory grew by %d MB", (peak-before)>>20)
	}
	if _, err := s.awaitWorking(ctx, time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d malformed requests rejected within %s, no second response; %s; memory +%d MB",
		len(cases), round(slices.Max(slowest)), large, max(0, peak-before)>>20), nil
}

// largeRequests sends requests that are too large, huge bodies at the same time. Each must
// get a 4xx.
func (s *deployment) largeRequests(ctx context.Context) (string, error) {
	const bodies, size = 8, 50 << 20
	tooLarge := []struct{ what, method, target, body string }{
		{"a value nested 100,000 deep", "POST", "/categories", strings.Repeat("[", 100_000)},
		{"fields nested 50,000 deep", "POST", "/categories", strings.Repeat(`{"name":`, 50_000)},
		{"a body of 1 MiB and a byte", "POST", "/messages", `{"message": "` + strings.Repeat("x", 1<<20-14) + `"}`},
		{"a path of 60 kB", "GET", "/pets/" + strings.Repeat("1", 60_000), ""},
		{"a query of 60 kB", "GET", "/pets?name=" + strings.Repeat("x", 60_000), ""},
		{"10,000 parameters", "GET", "/pets?" + strings.Repeat("id=1&", 10_000), ""},
		{"a URL of 1 MB", "GET", "/pets?name=" + strings.Repeat("x", 1_000_000), ""},
	}
	failures := make([]error, bodies+len(tooLarge))
	var group sync.WaitGroup
	for i := range bodies {
		group.Go(func() { failures[i] = s.sendHugeBody(ctx, size, i%2 == 0) })
	}
	group.Wait()
	for i, test := range tooLarge {
		resp, err := s.do(ctx, test.method, test.target, test.body)
		if err == nil && (resp.status < http.StatusBadRequest || resp.status >= http.StatusInternalServerError) {
			err = errors.New(resp.String())
		}
		if err != nil {
			failures[bodies+i] = fmt.Errorf("%s: %w", test.what, err)
		}
	}
	return fmt.Sprintf("%d × %d MB and %d others too large: 4xx", bodies, size>>20, len(tooLarge)), errors.Join(failures...)
}

// sendHugeBody sends a body, with a Content-Length or in chunks, until the server stops
// reading. The response must be 413.
func (s *deployment) sendHugeBody(ctx context.Context, size int, chunked bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.api.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	framing := "Content-Length: " + strconv.Itoa(size)
	if chunked {
		framing = "Transfer-Encoding: chunked"
	}
	go func() {
		const piece = 64 << 10
		_, err := fmt.Fprintf(conn, "POST /messages HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%s\r\n\r\n", s.key, framing)
		for sent := 0; sent < size && err == nil; sent += piece {
			text := strings.Repeat(" ", piece)
			if chunked {
				text = fmt.Sprintf("%x\r\n%s\r\n", piece, text)
			}
			_, err = io.WriteString(conn, text) // until the server stops reading
		}
	}()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return fmt.Errorf("a body of %d MB: %w", size>>20, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		return fmt.Errorf("a body of %d MB: %s", size>>20, response.Status)
	}
	return nil
}

// rawRequest is a request as the bytes that a client sends.
type rawRequest struct {
	name string
	text string
	// halfCloses means that the client closes its half of the connection after the text.
	halfCloses bool
}

// follower is sent after every malformed request. A response to it would mean that client
// and server disagree about where the request ends (request smuggling).
const follower = "GET /livez HTTP/1.1\r\nHost: petstore\r\n\r\n"

// rejected returns an error unless the server responds once, with a client error, and
// closes the connection.
func (r rawRequest) rejected(ctx context.Context, addr string, within time.Duration) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	text := r.text
	if !r.halfCloses {
		text += follower
	}
	go func() {
		_, _ = io.WriteString(conn, text) // the server may reject it before the end
		if tcp, ok := conn.(*net.TCPConn); ok && r.halfCloses {
			_ = tcp.CloseWrite() // fails if the connection is closed
		}
	}()
	responses, err := io.ReadAll(conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%s: the connection is still open after %s: %q", r.name, within, responses)
	}
	if count := strings.Count(string(responses), "HTTP/1.1 "); count != 1 {
		return fmt.Errorf("%s: %d responses, want 1: %q", r.name, count, responses)
	}
	status, _, _ := strings.Cut(strings.TrimPrefix(string(responses), "HTTP/1.1 "), " ")
	// RFC 9112 recommends 501 for unknown codings and 505 for unknown versions.
	if strings.HasPrefix(status, "4") || status == "501" || status == "505" {
		return nil
	}
	return fmt.Errorf("%s: %q", r.name, responses)
}

// nameMarks may occur in the name of a header, as letters and digits may (RFC 9110, section
// 5.6.2).
const nameMarks = "!#$%&'*+-.^_`|~"

// rawRequests returns requests that a server must reject, in the order of RFC 9112.
func rawRequests(key string) []rawRequest {
	authorization := "Authorization: Bearer " + key + "\r\n"
	post := "POST /categories HTTP/1.1\r\nHost: petstore\r\n" + authorization + "Content-Type: application/json\r\n"
	var l rawRequestList
	l.addRequestLines(authorization)
	l.addHeaders()
	l.addBodies(post)
	for i := range l {
		l[i].name = strconv.Itoa(i+1) + " " + l[i].name[:min(len(l[i].name), 60)]
	}
	// RFC 9112, section 8: requests that end too soon.
	whole := post + "Content-Length: 21\r\n\r\n{\"name\": \"malformed\"}"
	for _, length := range []int{1, 4, 10, 25, 60, len(whole) - 24, len(whole) - 21, len(whole) - 10, len(whole) - 1} {
		l = append(l, rawRequest{name: fmt.Sprintf("the first %d bytes of a request", length), text: whole[:length], halfCloses: true})
	}
	return l
}

// rawRequestList is a list of requests to add to.
type rawRequestList []rawRequest

// add adds a request for each variant, which replaces {} in the format.
func (l *rawRequestList) add(format string, variants ...string) {
	for _, variant := range variants {
		*l = append(*l, rawRequest{name: fmt.Sprintf("%q", variant), text: strings.Replace(format, "{}", variant, 1)})
	}
}

// addRequestLines adds invalid request lines (RFC 9112, section 3).
func (l *rawRequestList) addRequestLines(authorization string) {
	l.add("{}\r\nHost: petstore\r\n"+authorization+"\r\n",
		"GET", "GET ", " GET /pets HTTP/1.1", "GET  /pets HTTP/1.1", "GET /pets  HTTP/1.1", "GET\t/pets\tHTTP/1.1", "GET /pets", "/pets HTTP/1.1", "GET HTTP/1.1",
		"GET /pets HTTP", "GET /pets HTTP/", "GET /pets HTTP/1", "GET /pets HTTP/1.", "GET /pets HTTP/.1", "GET /pets HTTP/1.1.1", "GET /pets HTTP/1,1", "GET /pets HTTP/11.1",
		"GET /pets HTTP/1.10", "GET /pets HTTP/-1.1", "GET /pets HTTP/A.B", "GET /pets http/1.1", "GET /pets HTTPS/1.1", "GET /pets XHTTP/1.1", "GET /pets HTTP /1.1", "GET /pets HTTP/ 1.1",
		"GET /pets HTTP/0.9", "GET /pets HTTP/2.0", "GET /pets HTTP/3.0", "GET /pets HTTP/9.9", "PRI * HTTP/2.0", "GET /pets HTTP/1.1 extra",
		"G(T /pets HTTP/1.1", "GET, /pets HTTP/1.1", "\"GET\" /pets HTTP/1.1", "G\x00T /pets HTTP/1.1", "G\x7fT /pets HTTP/1.1", "G\xc3\x89T /pets HTTP/1.1", "{GET} /pets HTTP/1.1", "GET: /pets HTTP/1.1",
		"GET pets HTTP/1.1", "GET ?name=x HTTP/1.1", "GET // HTTP/1.1 x", "GET /pets\x00 HTTP/1.1", "GET /pets\x01 HTTP/1.1", "GET /pets\x1f HTTP/1.1", "GET /pets\x7f HTTP/1.1", "GET /pe ts HTTP/1.1",
		"GET /pets/%zz HTTP/1.1", "GET /pets/%1 HTTP/1.1", "GET /pets/% HTTP/1.1", "GET http://[::1 HTTP/1.1", "GET http://pet store/pets HTTP/1.1", "GET http://%zz/pets HTTP/1.1", "GET http://petstore:port/pets HTTP/1.1",
		"GET :80/pets HTTP/1.1", "GET http:///\x01 HTTP/1.1", "CONNECT / x HTTP/1.1", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "SSH-2.0-OpenSSH_9.2p1", "\x00\x00\x00\x00", "EHLO petstore", "*1\r\n$4\r\nPING",
	)
}

// addHeaders adds requests with an invalid Host (RFC 9112, section 3.2) or other header
// (section 5).
func (l *rawRequestList) addHeaders() {
	l.add("GET /livez HTTP/1.1\r\n{}\r\n\r\n",
		"X-Host: petstore", "Host: a\r\nHost: b", "Host: petstore\r\nHost: petstore", "Host: pet store", "Host: petstore/pets", "Host: pet\x01store", "Host: petstore\x00", "Host: pet\"store", "Host: <petstore>", "Host: pet\\store", "Host: user@petstore,b", "Host: ünïcode",
	)
	for c := range 256 {
		name := string([]byte{byte(c)})
		switch {
		case c >= 0x80 && c%32 != 0, c == '\r', c == '\n', c == ':', strings.Contains(nameMarks, name),
			c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z':
			continue // valid in a name, or its end
		}
		l.add("GET /livez HTTP/1.1\r\nHost: petstore\r\nX-Na{}me: value\r\n\r\n", name)
	}
	for c := range 0x80 {
		if (c < ' ' && c != '\t' && c != '\r' && c != '\n') || c == 0x7f {
			l.add("GET /livez HTTP/1.1\r\nHost: petstore\r\nX-Name: val{}ue\r\n\r\n", string(rune(c)))
		}
	}
	l.add("GET /livez HTTP/1.1\r\n{}\r\nHost: petstore\r\n\r\n",
		" Folded: at the beginning", "\tFolded: at the beginning", "No colon", ": no name", "Space : before the colon", "Tab\t: before the colon", "Carriage: re\rturn", "X-Name\r: value",
		"X-Large: "+strings.Repeat("x", 80_000), "X-"+strings.Repeat("x", 80_000)+": large", strings.TrimSuffix(strings.Repeat("X-Many: of them\r\n", 6_000), "\r\n"),
	)
}

// addBodies adds requests with an invalid length (RFC 9112, section 6) or invalid chunks
// (section 7.1).
func (l *rawRequestList) addBodies(post string) {
	l.add(post+"{}\r\n\r\n{\"name\": \"malformed\"}",
		"Content-Length: +21", "Content-Length: -21", "Content-Length: -0", "Content-Length: 0x15", "Content-Length: 2 1", "Content-Length: 21, 21", "Content-Length: 21,", "Content-Length: 21;", "Content-Length: 21.0", "Content-Length: 2e1",
		"Content-Length: twenty", "Content-Length: \"21\"", "Content-Length:", "Content-Length: 99999999999999999999", "Content-Length: 9223372036854775808", "Content-Length: 18446744073709551637", "Content-Length: 21\r\nContent-Length: 20",
		"Content-Length: 21\r\nContent-Length: 021x", "Content-Length: 21\r\nContent-Length:", "Content-Length: \xd9\xa2\xd9\xa1",
	)
	l.add(post+"{}\r\n\r\n15\r\n{\"name\": \"malformed\"}\r\n0\r\n\r\n",
		"Transfer-Encoding: identity", "Transfer-Encoding: gzip", "Transfer-Encoding: xchunked", "Transfer-Encoding: chunkedx", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding: \"chunked\"", "Transfer-Encoding: chunked;q=1", "Transfer-Encoding: ,chunked", "Transfer-Encoding:",
		"Transfer-Encoding: \x0bchunked", "Transfer-Encoding : chunked", "Transfer\xadEncoding: chunked",
	)
	l.add(post+"Transfer-Encoding: chunked\r\n\r\n{}",
		"g\r\n{}\r\n0\r\n\r\n", "-2\r\n{}\r\n0\r\n\r\n", "+2\r\n{}\r\n0\r\n\r\n", "0x2\r\n{}\r\n0\r\n\r\n", " 2\r\n{}\r\n0\r\n\r\n", "2 2\r\n{}\r\n0\r\n\r\n", "\r\n{}\r\n0\r\n\r\n", "2.0\r\n{}\r\n0\r\n\r\n", "FFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n", "8000000000000000\r\n{}\r\n0\r\n\r\n",
		"2\r\n{}0\r\n\r\n", "2\r\n{}\n0\r\n\r\n", "2\n{}\r\n0\r\n\r\n", "2\r{}\r\n0\r\n\r\n", "2\r\n{}x\r\n0\r\n\r\n", "1\r\n{}\r\n0\r\n\r\n", "3\r\n{}\r\n0\r\n\r\n", "2;"+strings.Repeat("x", 20_000)+"\r\n{}\r\n0\r\n\r\n",
	)
}
