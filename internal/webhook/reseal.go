package webhook

import (
	"bytes"
	"context"

	"petstore/db"
)

// reseal seals the secrets of a webhook with the first key of the vault, if they are not.
// So an operator can replace the key, and the secrets stay the same. It deletes a previous
// secret whose grace is over. A secret that does not open stays as it is, and lost gets the error.
// The error of reseal comes from the database.
func (v *Vault) reseal(ctx context.Context, queries *db.Queries, row db.WebhooksToSweepRow, lost *[]error) error {
	params := v.resealed(row, lost)
	if bytes.Equal(params.Secret, row.Secret) && bytes.Equal(params.PreviousSecret, row.PreviousSecret) {
		return nil
	}
	return queries.WebhookReseal(ctx, params)
}

// LostSecrets returns the errors of the secrets that do not open, as the next [Sweep] would find
// them. The second error comes from the database.
func LostSecrets(ctx context.Context, queries *db.Queries, v *Vault) (lost []error, err error) {
	page := db.WebhooksToSweepParams{PageSize: sweepPage}
	for {
		rows, err := queries.WebhooksToSweep(ctx, page)
		for _, row := range rows {
			if !row.IsGone {
				v.resealed(row, &lost)
			}
			page.AfterAccount, page.AfterID = row.AccountID, row.ID
		}
		if err != nil || len(rows) < sweepPage {
			return lost, err
		}
	}
}

// resealed returns the secrets of a webhook as reseal stores them.
func (v *Vault) resealed(row db.WebhooksToSweepRow, lost *[]error) db.WebhookResealParams {
	params := db.WebhookResealParams{
		AccountID: row.AccountID, ID: row.ID, OldSecret: row.Secret, OldPreviousSecret: row.PreviousSecret,
		Secret: v.again(row, row.Secret, lost),
	}
	if !row.PreviousIsOver && row.PreviousSecret != nil {
		params.PreviousSecret = v.again(row, row.PreviousSecret, lost)
	}
	return params
}

// again returns the form of a stored secret with the first key of the vault.
func (v *Vault) again(row db.WebhooksToSweepRow, stored []byte, lost *[]error) []byte {
	if v.isCurrent(stored) {
		return stored
	}
	at := Endpoint{AccountID: row.AccountID, ID: row.ID}
	secret, err := v.Open(at, stored)
	if err != nil {
		*lost = append(*lost, err)
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
