package report

import (
	"slices"
	"strings"
)

var secretRules = []Rule{
	{
		ID: "secret_url", Subject: "Secrets", Title: "Keep API keys out of URLs", Guide: "authentication#keys",
		situation: "a request with an API key",
		mistake:   "the client sent a secret in a path or a query, which logs and proxies store",
		judge:     judgeSecrets("request.path", "request.query"),
	},
	{
		ID: "secret_elsewhere", Subject: "Secrets", Title: "Send an API key only in Authorization", Guide: "authentication#keys",
		situation: "a request with an API key",
		mistake:   "the client sent a secret in a body or in another header than Authorization",
		judge:     judgeSecrets("request.method", "request.body", "request.headers"),
	},
	{
		ID: "secret_shared", Subject: "Secrets", Title: "Give each program and environment an API key of its own", Guide: "authentication#keys",
		situation: "an API key and the programs that used it",
		mistake:   "four or more programs, by their User-Agent, used the same API key",
		judge: func(r *Record, f *finding) {
			const many = 4
			programs := map[int64]map[string]string{} // by key: the id of the first request of each
			for _, e := range r.all {
				name, _, _ := strings.Cut(e.Agent, "/")
				if name, _, _ = strings.Cut(name, " "); name == "" {
					continue
				}
				if programs[e.APIKeyID] == nil {
					programs[e.APIKeyID] = map[string]string{}
				}
				if _, known := programs[e.APIKeyID][name]; !known {
					programs[e.APIKeyID][name] = e.ID
					if len(programs[e.APIKeyID]) == many {
						f.warn(e.ID)
					}
				}
			}
			f.good = len(programs) - len(f.mild)
		},
	},
}

// judgeSecrets looks for secrets in places of a request.
func judgeSecrets(places ...string) func(*Record, *finding) {
	return func(r *Record, f *finding) {
		for _, e := range r.all {
			f.check(!slices.ContainsFunc(e.Redacted, func(place string) bool { return slices.Contains(places, place) }), e.ID)
		}
	}
}
