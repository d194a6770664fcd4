package webhook

import (
	"bytes"
	"context"
	"fmt"

	"petstore/db"
)

// reseal seals the secrets of a webhook with the first key of the vault, if they are not.
// So an operator can replace the key, and the secrets stay the same. It deletes a previous
// secret whose grace is over. A secret that does not open stays as it is. The error comes
// from the database.
func (v *Vault) reseal(ctx context.Context, queries *db.Queries, row db.WebhooksToSweepRow, lost *lostSecrets) error {
	params := db.WebhookResealParams{
		AccountID: row.AccountID, ID: row.ID, OldSecret: row.Secret, OldPreviousSecret: row.PreviousSecret,
		Secret: v.again(row, row.Secret, lost),
	}
	if !row.PreviousIsOver && row.PreviousSecret != nil {
		params.PreviousSecret = v.again(row, row.PreviousSecret, lost)
	}
	if bytes.Equal(params.Secret, row.Secret) && bytes.Equal(params.PreviousSecret, row.PreviousSecret) {
		return nil
	}
	return queries.WebhookReseal(ctx, params)
}

// again returns the form of a stored secret with the first key of the vault.
func (v *Vault) again(row db.WebhooksToSweepRow, stored []byte, lost *lostSecrets) []byte {
	if v.isCurrent(stored) {
		return stored
	}
	at := Endpoint{AccountID: row.AccountID, ID: row.ID}
	secret, err := v.Open(at, stored)
	if err != nil {
		lost.add(err)
		return stored
	}
	return v.Seal(at, secret)
}

// isCurrent reports whether a stored secret has the form that the vault would give it.
func (v *Vault) isCurrent(stored []byte) bool {
	if len(v.keys) == 0 {
		return len(stored) > 0 && stored[0] == isPlain
	}
	id := v.keys[0].id
	return bytes.HasPrefix(stored, append([]byte{isSealed}, id[:]...))
}

// lostSecrets counts the secrets that do not open.
type lostSecrets struct {
	count int
	first error
}

func (l *lostSecrets) add(err error) {
	if l.count++; l.first == nil {
		l.first = err
	}
}

// err returns an error if there is a secret that does not open.
func (l *lostSecrets) err() error {
	if l.count == 0 {
		return nil
	}
	return fmt.Errorf("webhook: number of secrets that do not open: %d; the first: %w", l.count, l.first)
}
