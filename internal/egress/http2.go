package egress

import (
	"net/http"
	"time"
)

// silence is the time without a frame after which a client sends a ping, and the time for its response.
const silence = 10 * time.Second

// Pings lets a client notice that a connection over HTTP/2 is dead. Otherwise all requests would go to
// that connection for minutes, because a timeout ends only their streams.
func Pings() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence}
}
