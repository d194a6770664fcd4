package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"petstore/internal/pgtest"
)

// replicasVariable names the standbys of the program.
const replicasVariable = "PETSTORE_REPLICA_URLS="

// withReplica adds the standby of the database to the environment of the program, unless
// that names standbys. Only the engine [pgtest.Replica] has one.
func withReplica(environ []string) []string {
	if slices.ContainsFunc(environ, func(variable string) bool { return strings.HasPrefix(variable, replicasVariable) }) {
		return environ
	}
	for _, variable := range slices.Backward(environ) { // the last one counts
		if database, found := strings.CutPrefix(variable, "DATABASE_URL="); found {
			if replica := pgtest.ReplicaOf(database); replica != "" {
				return append(slices.Clone(environ), replicasVariable+replica)
			}
			break
		}
	}
	return environ
}

// replicaTransport makes every GET of the tests read on a standby that has the last write that the same
// server has acknowledged.
type replicaTransport struct {
	http.RoundTripper

	tokens  sync.Map // by host
	applied atomic.Int64
}

// RoundTrip sends a request.
func (r *replicaTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	token, written := r.tokens.Load(request.URL.Host)
	if written && request.Method == http.MethodGet && request.Header.Get("Prefer") == "" {
		request = request.Clone(request.Context())
		request.Header.Set("Prefer", fmt.Sprint("consistency=", token))
	}
	response, err := r.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if token := response.Header.Get("Petstore-Consistency"); token != "" {
		r.tokens.Store(request.URL.Host, token)
	}
	if strings.Contains(response.Header.Get("Preference-Applied"), "consistency=") {
		r.applied.Add(1)
	}
	return response, nil
}

// runWithReplica runs all tests on the engine [pgtest.Replica], or else only runs them. A
// complete run in which no read had a token shows nothing, so it fails.
func runWithReplica(run func() int, complete bool) int {
	if !pgtest.Is(pgtest.Replica) {
		return run()
	}
	transport := &replicaTransport{RoundTripper: http.DefaultTransport}
	http.DefaultClient.Transport = transport // http.DefaultTransport stays: the program clones it
	code := run()
	fmt.Fprintf(os.Stderr, "%d reads had a consistency token\n", transport.applied.Load())
	if code == 0 && complete && transport.applied.Load() == 0 {
		return 1
	}
	return code
}
