package account_test

import (
	"testing"

	"petstore/internal/account"
)

func TestPublicID(t *testing.T) {
	t.Parallel()
	if id := account.PublicID(3, false); id != "acc_3" {
		t.Errorf("the id of an account is %q", id)
	}
	const most = 9_007_199_254_740_991
	for _, id := range []int64{1, 1042, most} {
		if got, ok := account.ParseSandboxID(account.PublicID(id, true)); !ok || got != id {
			t.Errorf("sandbox %d: parsed as %d, %t", id, got, ok)
		}
	}
	for _, text := range []string{"", "1", "sbx_", "sbx_0", "sbx_01", "sbx_-1", "sbx_12345678901234567", "SBX_1", "sbx_1x", "sbx_1\n", "xsbx_1", "acc_1", "current"} {
		if id, ok := account.ParseSandboxID(text); ok {
			t.Errorf("%q was parsed as sandbox %d", text, id)
		}
	}
}
