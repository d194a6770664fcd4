//go:build clients

package delivery_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReferenceLibraries runs the receivers of the page "Receive webhooks" that use the
// libraries of Standard Webhooks for JavaScript and Python. `make clients` installs them.
func TestReferenceLibraries(t *testing.T) {
	t.Parallel()
	libraries := os.Getenv("PETSTORE_WEBHOOK_LIBRARIES")
	if libraries == "" {
		t.Fatal("PETSTORE_WEBHOOK_LIBRARIES must be set to the folder of the libraries; run make clients")
	}
	all := newFeed(t)
	all.work()
	for _, p := range []program{
		{name: "JavaScript", files: []string{"receiver.mjs"}, modules: filepath.Join(libraries, "node_modules"), run: []string{"node", "receiver.mjs"}},
		{name: "Python", files: []string{"receiver.py"}, run: []string{filepath.Join(libraries, "venv", "bin", "python"), "receiver.py"}},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.test(t, all.of(t, p.name))
		})
	}
}
