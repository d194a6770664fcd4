package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"petstore/internal/tools/need"
)

// A pinned reference has a digest and names the version.
var (
	pinnedImage  = regexp.MustCompile(`^[a-z0-9./-]+:[A-Za-z0-9.-]+@sha256:[0-9a-f]{64}$`)
	pinnedAction = regexp.MustCompile(`^[a-z0-9/-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+$`)
)

// TestImagesAndActionsArePinned covers the Dockerfile, the compose file and the
// workflows.
func TestImagesAndActionsArePinned(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		file    string
		named   *regexp.Regexp
		pinned  *regexp.Regexp
		atLeast int
	}{
		{"Dockerfile", regexp.MustCompile(`(?m)^ARG GO_IMAGE=(.*)$`), pinnedImage, 1},
		{"docker-compose.yml", regexp.MustCompile(`\$\{(?:POSTGRES|PROMETHEUS|GRAFANA)_IMAGE:-(.*)\}`), pinnedImage, 3},
		{"deploy/replica/compose.yml", regexp.MustCompile(`\$\{POSTGRES_IMAGE:-(.*)\}`), pinnedImage, 1},
		{"internal/pgtest/container/main.go", regexp.MustCompile(`defaultImage = "(.*)"`), pinnedImage, 1},
		{".ci/docker", regexp.MustCompile(`(?m)^postgres=(postgres:.*)$`), pinnedImage, 1},
		{".github/workflows/ci.yml", regexp.MustCompile(`(?m)uses: (.*)$`), pinnedAction, 3},
		{".github/workflows/release.yml", regexp.MustCompile(`(?m)uses: ([^.].*)$`), pinnedAction, 4}, // ./ is this repository
	} {
		text := readFile(t, "../../"+test.file)
		found := test.named.FindAllStringSubmatch(text, -1)
		if len(found) < test.atLeast {
			t.Errorf("%s: found %d references", test.file, len(found))
		}
		for _, match := range found {
			if !test.pinned.MatchString(match[1]) {
				t.Errorf("%s: %q is not pinned by digest", test.file, match[1])
			}
		}
	}
}

// TestTagsOfReleases runs the check of a tag by the workflow of a release.
func TestTagsOfReleases(t *testing.T) {
	t.Parallel()
	check := regexp.MustCompile(`(?m)run: (.*--contains.*)$`).FindStringSubmatch(readFile(t, "../../.github/workflows/release.yml"))
	if check == nil {
		t.Fatal("release.yml does not check the branch of the tag")
	}
	for branch, isAllowed := range map[string]bool{"main": true, "release-1.0": true, "release-1.0-fix": false, "fix/release-1.0": false} {
		const commit = `git init -q && git -c user.name=a -c user.email=a commit -q --allow-empty -m a && git update-ref "refs/remotes/origin/$1" HEAD && export GITHUB_SHA=$(git rev-parse HEAD)`
		script := exec.CommandContext(t.Context(), "bash", "-ec", commit+"\n"+check[1], "check", branch)
		script.Dir = t.TempDir()
		if output, err := script.CombinedOutput(); (err == nil) != isAllowed || strings.Contains(string(output), "Delete it") == isAllowed {
			t.Errorf("a tag on %s: %v, %s", branch, err, output)
		}
	}
}

// TestComposeFiles checks that every service has limits, and that the files contain no
// password.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	for path, atLeast := range map[string]int{"docker-compose.yml": 6, "deploy/replica/compose.yml": 1} {
		text := readFile(t, "../../"+path)
		var file struct {
			Services map[string]composeService
		}
		need.OK(t, yaml.Unmarshal([]byte(text), &file))
		own := 0
		for name, service := range file.Services {
			if service.Image == "" {
				continue // the file only adds to a service of another file
			}
			own++
			if service.MemLimit == "" || service.Logging.Options["max-size"] == "" || service.Logging.Options["max-file"] == "" || len(service.SecurityOpt) == 0 {
				t.Errorf("%s: %s has no limit of memory or logs, or no security_opt: %+v", path, name, service)
			}
		}
		if own < atLeast {
			t.Errorf("%s: found %d services with an image", path, own)
		}
		for name, service := range file.Services {
			for variable := range service.Environment {
				if strings.HasSuffix(variable, "PASSWORD") {
					t.Errorf("%s: %s: the environment contains the password %s", path, name, variable)
				}
			}
		}
	}
}

// TestMemoryLimits checks that GOMEMLIMIT leaves 64 KB for each of 2,000 connections, in the
// kernel. .ci/manifests checks the manifests.
func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	for path, limit := range map[string]*regexp.Regexp{
		"docker-compose.yml":                             regexp.MustCompile(`GOMEMLIMIT: (\d+)MiB(?s:.*?)mem_limit: (\d+)m`),
		"deploy/systemd/petstore-.service.d/limits.conf": regexp.MustCompile(`MemoryMax=(\d+)M\nEnvironment=GOMEMLIMIT=(\d+)MiB`),
	} {
		text := readFile(t, "../../"+path)
		found := limit.FindAllStringSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s: found no limit of memory with GOMEMLIMIT", path)
		}
		for _, match := range found {
			one, oneErr := strconv.Atoi(match[1])
			other, otherErr := strconv.Atoi(match[2])
			if err := errors.Join(oneErr, otherErr); err != nil || max(one, other)-min(one, other) < 125 {
				t.Errorf("%s: the limit is less than 125 MiB above GOMEMLIMIT: %q, %v", path, match[0], err)
			}
		}
	}
}

// composeService has the fields of a service of a compose file that the tests check.
type composeService struct {
	Image       string
	MemLimit    string `yaml:"mem_limit"`
	Logging     struct{ Options map[string]string }
	SecurityOpt []string `yaml:"security_opt"`
	Environment map[string]string
}

// TestRestoreThatFails: a restore of which a program fails says that the database is not complete, and
// what to do.
func TestRestoreThatFails(t *testing.T) {
	t.Parallel()
	programs := []string{"pg_restore", "psql", "petstore"}
	remedies := map[string]string{"pg_restore": "Drop the database", "psql": "Drop the database", "petstore": "petstore after-restore --nothing-lost"}
	for _, failing := range append(programs, "none") {
		dir := t.TempDir()
		for _, program := range programs {
			does := need.Value(exec.LookPath(map[bool]string{true: "false", false: "true"}[program == failing]))(t)
			need.OK(t, os.Symlink(does, filepath.Join(dir, program)))
		}
		restore := exec.CommandContext(t.Context(), "../../deploy/backup/restore.sh", "petstore.dump", "--nothing-lost")
		restore.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "OWNER_URL=postgres://db1/petstore"}
		output, err := restore.CombinedOutput()
		if fails := failing != "none"; (err != nil) != fails || strings.Contains(string(output), "not complete") != fails || !strings.Contains(string(output), remedies[failing]) {
			t.Errorf("%s fails: %v, %s", failing, err, output)
		}
	}
}

// TestRestoreOfVersions: a restore brings the versions of the schema last, because a database without
// them is not ready.
func TestRestoreOfVersions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for program, text := range map[string]string{
		"pg_restore": `[ "$1" != --list ] || exec printf '1; 0 1 TABLE DATA public %s petstore_owner\n' pets goose_db_version
			for argument; do case $argument in --use-list=*) cat; esac; done; echo "pg_restore $*"`,
		"psql":     "echo psql",
		"petstore": `echo "petstore $*"`,
	} {
		need.OK(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	restore := exec.CommandContext(t.Context(), "../../deploy/backup/restore.sh", "petstore.dump")
	restore.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "OWNER_URL=postgres://db1/petstore", "PETSTORE_SERVING_ROLE=role"}
	output := string(need.Value(restore.Output())(t))
	const common = "pg_restore --exit-on-error --no-owner --no-privileges --dbname=postgres://db1/petstore "
	want := "1; 0 1 TABLE DATA public pets petstore_owner\n" + common + "--jobs=4 --use-list=/dev/stdin petstore.dump\npsql\n" +
		common + "--data-only --table=goose_db_version petstore.dump\npetstore migrate up\npetstore after-restore\n"
	if output != want {
		t.Errorf("the restore runs:\n%swant:\n%s", output, want)
	}
}
