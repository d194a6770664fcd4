package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestManualPages checks that each command has a manual page, with the variables that it reads.
func TestManualPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, nil, "man", dir)
	for command := range strings.FieldsSeq("petstore petstore-serve petstore-api petstore-key-create petstore-migrate-up") {
		page, err := os.ReadFile(filepath.Join(dir, command+".1"))
		if err != nil || !strings.Contains(string(page), ".SH SYNOPSIS") {
			t.Errorf("the page of %s: %v\n%s", command, err, page)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "petstore-key-create.1"))
	if err != nil || !strings.Contains(string(page), ".SH ENVIRONMENT\nDATABASE_URL, PETSTORE_DB_MAX_CONNS\n") {
		t.Errorf("the page has no variables: %v\n%s", err, page)
	}
	wantRefusal(t, nil, "none", "man", filepath.Join(dir, "none"))
}
