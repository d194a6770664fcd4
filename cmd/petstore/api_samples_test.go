package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/docs/docstest"
	"petstore/internal/tools/need"
)

// TestAPISamples: the sample of each operation sends exactly the request of its form, whatever this
// contains, and fails if the server refuses it. Package api runs the other samples of this request
// on a real server.
func TestAPISamples(t *testing.T) {
	t.Parallel()
	spec := need.Value(api.SpecFor(""))(t)
	forms := docstest.HostileForms(t)
	for _, name := range regexp.MustCompile(`"tags": \[[^]]*\],\s*"operationId": "(\w+)"`).FindAllSubmatch(spec.JSON, -1) {
		forms = append(forms, docstest.Form{Operation: string(name[1])})
	}
	if got, want := len(forms), len(docstest.HostileForms(t))+bytes.Count(spec.JSON, []byte("x-codeSamples")); got != want {
		t.Fatalf("%d forms, want %d", got, want)
	}
	_, _, page := sharedServer(t)
	key := auth.NewSecret().Reveal()
	var sent []docstest.Request
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		one := docstest.Request{Method: r.Method, Target: r.RequestURI, Type: r.Header.Get("Content-Type"), Headers: [][2]string{}, Body: string(body)}
		for name, values := range r.Header {
			isOfClient := slices.Contains([]string{"Authorization", "Content-Type", "Content-Length", "User-Agent", "Accept-Encoding"}, name)
			if !isOfClient && !ownKey.MatchString(values[0]) {
				one.Headers = append(one.Headers, [2]string{name, values[0]})
			}
		}
		sent = append(sent, one)
	})
	inAnyOrder := cmpopts.SortSlices(func(a, b [2]string) bool { return a[0] < b[0] }) // headers
	docstest.NeedPrograms(t, "bash")
	for _, want := range docstest.Requests(t, page, forms) {
		source := want.Samples["CLI"]
		// A shell that prints the arguments and the stdin of the command.
		shell := exec.CommandContext(t.Context(), "bash", "-c", "petstore() { printf '%s\\0' \"$@\"; cat; }\n"+source)
		output, err := shell.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, source)
		}
		parts := strings.Split(string(output), "\x00")
		args, stdin := parts[:len(parts)-1], parts[len(parts)-1]
		for _, one := range []string{key, auth.NewSecret().Reveal()} {
			_, _, err := executeIn(t, emptyDir, clientOf(server.URL, one), stdin, args...)
			if (err == nil) != (one == key) {
				t.Errorf("%v\n%s", err, source)
			}
		}
		want.Samples, want.Body = nil, decoded(want.Body)
		for i := range sent {
			sent[i].Body = decoded(sent[i].Body)
		}
		if diff := cmp.Diff([]docstest.Request{want, want}, sent, inAnyOrder); diff != "" {
			t.Errorf("%s\nsends (-form +request):\n%s", source, diff)
		}
		sent = nil
	}
}

// ownKey matches an Idempotency-Key of api.
var ownKey = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// decoded returns a text in a form that is the same for all texts of a JSON value.
func decoded(text string) string {
	var value any
	if json.Unmarshal([]byte(text), &value) != nil {
		return text
	}
	return fmt.Sprintf("%#v", value)
}
