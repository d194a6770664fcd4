package secretscan_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"petstore/internal/auth"
	"petstore/internal/tools/need"
	"petstore/internal/tools/secretscan"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	const password = "correct horse/battery:staple?"
	key := auth.NewSecret()
	var secrets secretscan.Secrets
	secrets.Learn("the password", password)
	secrets.LearnKeys("Bearer " + key.Reveal() + "\n")
	secrets.LearnKeys("petstore_" + strings.Repeat("0", 36)) // an example of a key
	keyName := "the API key " + key.Prefix()
	hidden := key.Reveal()[len(key.Prefix()):]

	for text, want := range map[string][]string{
		"":                                       nil,
		key.Prefix():                             nil,
		"petstore_":                              nil,
		password[:15]:                            nil,
		"x" + password:                           {"the password"},
		password[3:19]:                           {"the password"},
		hidden[12:]:                              {keyName},
		"=" + key.Reveal() + password + password: {keyName, "the password"},
		"postgres://u:" + url.PathEscape(password) + "@h/d":                              {"the password"},
		"?password=" + url.QueryEscape(password):                                         {"the password"},
		fmt.Sprintf("%x", "\x00"+password):                                               {"the password"},
		fmt.Sprintf("%X", password):                                                      {"the password"},
		"Basic " + base64.StdEncoding.EncodeToString([]byte("a:"+password)):              {"the password"},
		"Basic " + base64.StdEncoding.EncodeToString([]byte("ab:"+password)):             {"the password"},
		"Basic " + base64.URLEncoding.EncodeToString([]byte("abc:"+key.Reveal()+"more")): {keyName},
		"msg_" + strings.Repeat("0", 32):                                                 nil,
		strings.ToUpper(password):                                                        nil,
	} {
		need.Same(t, want, secrets.In(text), "%q", text)
	}
	for spaces := range 2 * secretscan.Shortest { // at every offset
		text := strings.Repeat(" ", spaces) + password[3:3+secretscan.Shortest]
		need.Same(t, []string{"the password"}, secrets.In(text), "%q", text)
	}
	if found := new(secretscan.Secrets).In(password); found != nil {
		t.Errorf("an empty set found %v, want nothing", found)
	}
}
