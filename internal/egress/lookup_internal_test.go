package egress

import "testing"

// TestLookedUpNames: a name without a dot at the end would be looked up in the search
// domains of the machine too. TestSearchDomains needs a machine that has one.
func TestLookedUpNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		allow      []Network
		host, want string
	}{
		{nil, "db.prod", "db.prod."},
		{nil, "db.prod.", "db.prod."},
		{Loopback, "db.prod", "db.prod"},
	} {
		if got := New(Options{Allow: test.allow}).lookedUp(test.host); got != test.want {
			t.Errorf("%s with %d networks allowed: %s, want %s", test.host, len(test.allow), got, test.want)
		}
	}
}
