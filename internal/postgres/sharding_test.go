package postgres_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// These tests hold the rules of docs/decisions/0020-citus.md that need no Citus.

// queryRules are patterns that no query may match, by the reason.
var queryRules = map[string]*regexp.Regexp{
	"an INSERT in a query with WITH":                       regexp.MustCompile(`(?is)\bWITH\b.*\bINSERT\b|\bINSERT\b.*\bWITH \w+ AS`),
	"a volatile function":                                  regexp.MustCompile(`(?i)\b(clock_timestamp|random|gen_random_uuid|timeofday)\(`),
	"a subscript as the value of a column":                 regexp.MustCompile(`(?i)(SET|,)\s+\w+\s+= \((@\w+|\$\d)::\w+\[\]\)\[`),
	"a time zone in the WHERE of ON CONFLICT":              regexp.MustCompile(`(?is)ON CONFLICT.*WHERE.*\w_at [+-] interval`),
	"an INSERT with SELECT and RETURNING without an alias": regexp.MustCompile(`(?is)INSERT INTO \w+ \([^)]*\)\s*SELECT.*RETURNING`),
	"an update of the account":                             regexp.MustCompile(`(?i)(SET|,)\s+account_id\s+=`),
}

// brokenRules returns the rules that a query breaks.
func brokenRules(query string) []string {
	query = sqlComment.ReplaceAllString(query, "")
	var broken []string
	for reason, pattern := range queryRules {
		if pattern.MatchString(query) {
			broken = append(broken, reason)
		}
	}
	slices.Sort(broken)
	return broken
}

func TestQueriesSuitCitus(t *testing.T) {
	t.Parallel()
	seen := 0
	for name, query := range allQueries(t) {
		seen++
		if broken := brokenRules(query.text); len(broken) > 0 {
			t.Errorf("%s has %v", name, broken)
		}
		// Several statements are atomic only in a transaction, which internal/groupcommit begins.
		if strings.HasPrefix(query.kind, "batch") && query.file != "groupcommit.sql" && regexp.MustCompile(`(?i)\b(INSERT|UPDATE|DELETE)\b`).MatchString(query.text) {
			t.Errorf("%s is a batch that writes outside of queries/groupcommit.sql", name)
		}
		if slices.Contains(maintenance, name) && regexp.MustCompile(`(?i)\bFOR (NO KEY )?UPDATE|\bFOR (KEY )?SHARE`).MatchString(query.text) {
			t.Errorf("%s locks rows of several accounts", name)
		}
	}
	if seen < 100 {
		t.Errorf("only %d queries", seen)
	}
}

// TestQueriesThatDoNotSuitCitus checks that the test above notices.
func TestQueriesThatDoNotSuitCitus(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"WITH a AS (UPDATE pets SET name = 'a' RETURNING id) INSERT INTO orders SELECT id FROM a;":                                "an INSERT in a query with WITH",
		"WITH a AS (INSERT INTO pets DEFAULT VALUES RETURNING id) SELECT id FROM a;":                                              "an INSERT in a query with WITH",
		"UPDATE account_state SET reset_at = clock_timestamp() WHERE account_id = @account_id;":                                   "a volatile function",
		"UPDATE orders SET complete = (@completes::boolean[])[1] WHERE account_id = @account_id;":                                 "a subscript as the value of a column",
		"UPDATE inventory SET held = 1,\n    quantity = (@q::bigint[])[pet_id] WHERE account_id = @account_id;":                   "a subscript as the value of a column",
		"INSERT INTO a VALUES (1) ON CONFLICT (id) DO UPDATE SET x = 1 WHERE a.used_at < excluded.used_at - interval '1 minute';": "a time zone in the WHERE of ON CONFLICT",
		"INSERT INTO orders (account_id, id) SELECT account_state.account_id, 1 FROM account_state RETURNING id;":                 "an INSERT with SELECT and RETURNING without an alias",
		"UPDATE pets SET account_id = 2 WHERE account_id = @account_id;":                                                          "an update of the account",
	} {
		need.Same(t, []string{want}, brokenRules(query), "%s", query)
	}
}

// query is a query in queries/.
type query struct{ file, kind, text string }

// allQueries returns the queries in queries/ by name.
func allQueries(t *testing.T) map[string]query {
	t.Helper()
	files, err := filepath.Glob("../../queries/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("queries %v: %v", files, err)
	}
	all := map[string]query{}
	for _, file := range files {
		text := need.Value(os.ReadFile(file))(t)
		for _, found := range regexp.MustCompile(`(?s)-- name: (\w+) :(\w+)\n(.*?;)`).FindAllStringSubmatch(string(text), -1) {
			all[found[1]] = query{filepath.Base(file), found[2], found[3]}
		}
	}
	return all
}

// firstLater is the first migration that may run on a distributed database.
const firstLater = "00013"

// brokenMigrationRules returns the rules that the Up part of a migration breaks.
func brokenMigrationRules(name, text string) (broken []string) {
	up, _, _ := strings.Cut(sqlComment.ReplaceAllString(strings.ReplaceAll(text, "-- +goose Down", "§"), ""), "§")
	for statement := range strings.SplitSeq(withoutLiterals(up), ";") {
		statement = strings.Join(strings.Fields(statement), " ")
		outer := nested.ReplaceAllString(nested.ReplaceAllString(nested.ReplaceAllString(statement, ""), ""), "")
		isNewTable := strings.HasPrefix(statement, "CREATE TABLE ")
		if strings.HasPrefix(statement, "ALTER TABLE ") && strings.Contains(outer, ",") {
			broken = append(broken, "an ALTER TABLE with several actions")
		}
		if regexp.MustCompile(`ADD COLUMN .*\b(CHECK|REFERENCES|UNIQUE|PRIMARY KEY)\b`).MatchString(statement) {
			broken = append(broken, "a constraint in ADD COLUMN")
		}
		for _, constraint := range regexp.MustCompile(`(CONSTRAINT \w+ )?(PRIMARY KEY|FOREIGN KEY|UNIQUE \(|CHECK \()`).FindAllStringSubmatch(statement, -1) {
			if (isNewTable || strings.Contains(statement, "ADD ")) && constraint[1] == "" {
				broken = append(broken, "a constraint without a name")
			}
		}
		if isNewTable && name >= firstLater && strings.Contains(statement, "account_id ") && regexp.MustCompile(`\b(FOREIGN KEY|REFERENCES)\b`).MatchString(statement) {
			broken = append(broken, "a new table of a store with a foreign key, which belongs in the next migration")
		}
	}
	return broken
}

var nested = regexp.MustCompile(`\([^()]*\)`)

func withoutLiterals(sql string) string {
	return regexp.MustCompile(`'[^']*'`).ReplaceAllString(sql, "''")
}

func TestMigrationsSuitCitus(t *testing.T) {
	t.Parallel()
	_, migrations := allMigrations(t)
	for name, text := range migrations {
		for _, broken := range brokenMigrationRules(name, text) {
			t.Errorf("%s has %s", name, broken)
		}
	}
}

// TestMigrationsThatDoNotSuitCitus checks that the test above notices.
func TestMigrationsThatDoNotSuitCitus(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ALTER TABLE pets ADD COLUMN a int, ADD COLUMN b int;":                                                             "an ALTER TABLE with several actions",
		"ALTER TABLE pets ADD COLUMN a int CHECK (a > 0);":                                                                 "a constraint in ADD COLUMN",
		"ALTER TABLE pets ADD UNIQUE (account_id, name);":                                                                  "a constraint without a name",
		"CREATE TABLE visits (account_id bigint NOT NULL, id bigint, PRIMARY KEY (account_id, id));":                       "a constraint without a name",
		"CREATE TABLE visits (account_id bigint NOT NULL, pet_id bigint, CONSTRAINT a FOREIGN KEY (pet_id) REFERENCES b);": "a new table of a store with a foreign key, which belongs in the next migration",
		"CREATE TABLE visits (account_id bigint, CONSTRAINT a PRIMARY KEY (account_id), CONSTRAINT b CHECK (account_id IN (1, 2)));\n-- +goose Down\nALTER TABLE a ADD b int, ADD c int;": "",
	} {
		got := slices.Compact(brokenMigrationRules("00099_later.sql", text))
		if want == "" && len(got) == 0 {
			continue
		}
		if !slices.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestErrorsAreClassifiedBySQLSTATE checks that no program reads the name of a
// constraint, which is empty if a worker of Citus reports the error.
func TestErrorsAreClassifiedBySQLSTATE(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		for _, field := range []string{".ConstraintName", ".TableName", ".ColumnName", ".DataTypeName"} {
			if strings.Contains(string(text), field) {
				t.Errorf("%s reads %s", path, field)
			}
		}
		return err
	})
	if err != nil || files < 100 {
		t.Errorf("%d files, %v", files, err)
	}
}
