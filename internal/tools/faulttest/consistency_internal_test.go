package main

import "testing"

// TestFindFork finds readers that disagree on the order of changes, and no others.
func TestFindFork(t *testing.T) {
	t.Parallel()
	snapshot := func(first, second int) sighting { return sighting{Versions: [2]int{first, second}} }
	forward := func(first, second int) sighting {
		return sighting{Versions: [2]int{first, second}, SecondMayBeLater: true}
	}
	backward := func(first, second int) sighting {
		return sighting{Versions: [2]int{first, second}, FirstMayBeLater: true}
	}
	order := []sighting{snapshot(0, 0), snapshot(1, 0), snapshot(1, 1), snapshot(1, 2), snapshot(2, 2), snapshot(3, 2)}
	for name, test := range map[string]struct {
		seen []sighting
		want bool
	}{
		"nothing":                      {nil, false},
		"the order":                    {order, false},
		"a long fork":                  {[]sighting{snapshot(1, 0), snapshot(0, 1)}, true},
		"a long fork of old versions":  {[]sighting{snapshot(5, 2), snapshot(3, 7)}, true},
		"against the order":            {append(order, snapshot(0, 1)), true},
		"between two of the order":     {append(order, snapshot(2, 1)), true},
		"a later second version":       {append(order, forward(0, 2)), false},
		"an earlier second version":    {append(order, forward(2, 1)), true},
		"a later first version":        {append(order, backward(3, 0)), false},
		"an earlier first version":     {append(order, backward(0, 1)), true},
		"two walks that agree":         {[]sighting{forward(0, 1), backward(1, 0)}, false},
		"two walks in one direction":   {[]sighting{forward(1, 0), forward(0, 1)}, false},
		"walks that contradict":        {[]sighting{forward(1, 0), backward(0, 1)}, true},
		"walks of different changes":   {[]sighting{forward(1, 0), backward(1, 1)}, false},
		"a list and a walk that agree": {[]sighting{snapshot(1, 0), forward(0, 1)}, false},
	} {
		if _, _, found := findFork(test.seen); found != test.want {
			t.Errorf("%s: %t, want %t", name, found, test.want)
		}
	}
}
