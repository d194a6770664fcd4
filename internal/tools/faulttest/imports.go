package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"petstore/internal/sleep"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
	"petstore/internal/transfer"
)

const (
	importedRows = 20_000
	wrongRow     = 1000 // every such row has a mistake
	importKills  = 10
)

// killedImport is row 52: an import is killed ten times. Three of the kills hit the service too, and
// three PostgreSQL. The command that ends the import reports every row, and each is in the store
// exactly once, with the id in the journal.
func killedImport(ctx context.Context, f *fixture) string {
	s := f.open(ctx, "PETSTORE_ACCOUNT_RATE_LIMIT=0")
	i := &importer{deployment: s, key: f.newKey(ctx, s.db, "importer", "write"), file: filepath.Join(f.dir, "pets.csv")}
	s.db.fillStore(ctx, "importer")
	before := s.db.count(ctx, imported)
	i.write()
	for kill := range importKills {
		i.process = run.Start(i.command(ctx), "")
		i.awaitRows(ctx, 200+rand.N(1000))
		switch kill % 3 {
		case 1:
			s.api.kill()
			sleep.For(ctx, 100*time.Millisecond)
			s.api.restart(ctx)
		case 2:
			s.db.signal(syscall.SIGKILL)
			sleep.For(ctx, 100*time.Millisecond)
			s.db.start(ctx)
			s.awaitWorking(ctx, 5*time.Second)
		}
		i.awaitRows(ctx, rand.N(200))
		i.process.Kill()
		must.Hold(!i.process.ProcessState.Exited(), "the import ended before kill %d", kill+1)
	}
	known := i.accepted()
	s.withKey(i.key).want(ctx, 200, "GET", "/account", "")
	report := i.finish(ctx)
	const wrong = importedRows / wrongRow
	must.Hold(report.Rows == importedRows && report.Failed == wrong && report.Before == int64(len(known)) && report.Imported+report.Before+report.Failed == importedRows,
		"the report is %+v, want %d rows before and %d with mistakes", report, len(known), wrong)
	i.checkErrors()
	i.checkStore(ctx, before)
	return fmt.Sprintf("%d rows, of which %d before the last kill, each once; %d mistakes reported", report.Rows, report.Before, report.Failed)
}

// imported counts the pets of the account.
const imported = "SELECT count(*) FROM pets JOIN accounts ON accounts.id = account_id WHERE accounts.name = 'importer'"

// importer is an import that can be killed.
type importer struct {
	*deployment

	key, file string
	process   *run.Process
}

// write writes the file.
func (i *importer) write() {
	var text strings.Builder
	text.WriteString("name,categoryId,status\n")
	for row := 1; row <= importedRows; row++ {
		status := "sold"
		if row%wrongRow == 0 {
			status = "lost"
		}
		fmt.Fprintf(&text, "row %d,1,%s\n", row, status)
	}
	must.OK(os.WriteFile(i.file, []byte(text.String()), 0o600))
}

// command returns the command that begins or continues the import.
func (i *importer) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, i.program.binary, "import", i.file, "--json", "--errors", i.file+".errors")
	cmd.Env = []string{"PETSTORE_URL=" + i.base, "PETSTORE_API_KEY=" + i.key, "HOME=" + i.dir, "TMPDIR=" + i.dir}
	return cmd
}

// accepted returns the ids of the rows in the journal, by the line.
func (i *importer) accepted() map[int]int64 {
	journals := must.Get(filepath.Glob(i.file + ".*.journal"))
	must.Hold(len(journals) == 1, "the journals are %q", journals)
	ids := map[int]int64{}
	for line := range strings.Lines(string(must.Get(os.ReadFile(journals[0])))) {
		var number int
		var id int64
		var hash string
		if n, _ := fmt.Sscanf(line, "%d %d %s\n", &number, &id, &hash); n == 3 {
			ids[number] = id
		}
	}
	return ids
}

// awaitRows waits until about this number of rows more is in the journal.
func (i *importer) awaitRows(ctx context.Context, rows int) {
	const bytes = 50 // of each row
	size := func() (size int64) {
		for _, journal := range must.Get(filepath.Glob(i.file + ".*.journal")) {
			size += must.Get(os.Stat(journal)).Size()
		}
		return size
	}
	before := size()
	must.Await(ctx, 30*time.Second, func() {
		must.Hold(size() >= before+int64(rows*bytes), "the import has written %d bytes", size()-before)
	})
}

// finish continues the import until it ends.
func (i *importer) finish(ctx context.Context) (report transfer.Summary) {
	output, err := i.command(ctx).Output()
	must.Hold(err != nil, "an import with mistakes succeeds") // exit code 1
	if err := json.Unmarshal(output, &report); err != nil {
		must.OK(fmt.Errorf("the import prints %q: %w", output, err))
	}
	return report
}

// checkErrors fails the row unless the errors are about the wrong rows.
func (i *importer) checkErrors() {
	found := map[int64]bool{}
	for text := range strings.Lines(string(must.Get(os.ReadFile(i.file + ".errors")))) {
		var one transfer.RowError
		must.OK(json.Unmarshal([]byte(text), &one))
		must.Hold((one.Line-1)%wrongRow == 0 && one.Field == "status" && one.Code == "not_in_enum", "an error is %s", text)
		found[one.Line] = true
	}
	must.Hold(len(found) == importedRows/wrongRow, "%d errors", len(found))
}

// checkStore fails the row unless the store has each row once, with the id in the journal.
func (i *importer) checkStore(ctx context.Context, before int) {
	const wanted = importedRows - importedRows/wrongRow
	made := i.db.count(ctx, imported) - before
	ids := i.accepted()
	lines, values := make([]int64, 0, len(ids)), make([]int64, 0, len(ids))
	for line, id := range ids {
		lines, values = append(lines, int64(line)), append(values, id)
	}
	right := i.db.count(ctx, `
		SELECT count(DISTINCT pets.id)
		FROM unnest($1::bigint[], $2::bigint[]) AS row (line, id)
		JOIN accounts ON accounts.name = 'importer'
		JOIN pets ON pets.account_id = accounts.id AND pets.id = row.id AND pets.name = 'row ' || (row.line - 1)`, lines, values)
	must.Hold(made == wanted && right == wanted, "%d pets were created, and %d have the id in the journal, want %d", made, right, wanted)
}
