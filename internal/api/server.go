// Package api is the HTTP API of Petstore: the operations on resources, behind a
// [gate.Gate]. The contract test compares every request and response with openapi.yaml.
package api

import (
	"context"
	"net/http"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/coalesce"
	"petstore/internal/egress"
	"petstore/internal/exchange"
	"petstore/internal/faults"
	"petstore/internal/feed"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/postgres"
	"petstore/internal/webhook"
)

// Version is the version of the API, info.version of the spec.
const Version = "1.0.0"

// Options are the dependencies and settings of a Server.
type Options struct {
	gate.Options

	// Egress decides which URLs webhooks may have; nil: public addresses with https.
	Egress *egress.Guard
	// Vault seals the secrets of webhooks; nil: they are stored as they are.
	Vault *webhook.Vault

	// Announce is called after a commit with events of an account; nil: nobody else needs
	// them.
	Announce func(accountID int64)
	// Deliver is called after a commit that makes deliveries to a webhook due; nil: the
	// worker looks for them itself.
	Deliver func(accountID int64, webhookID string)
}

// setDefaults sets the options that are nil.
func (o *Options) setDefaults() {
	o.Options.SetDefaults()
	if o.Egress == nil {
		o.Egress = egress.New(egress.Options{})
	}
	if o.Vault == nil {
		o.Vault = &webhook.Vault{}
	}
	if o.Announce == nil {
		o.Announce = func(int64) {}
	}
	if o.Deliver == nil {
		o.Deliver = func(int64, string) {}
	}
}

// Server is the handler of the API. It is safe for concurrent use.
type Server struct {
	options Options
	gate    *gate.Gate

	queries   *db.Queries
	reads     *db.Queries            // for GET: on the primary or a replica, as the gate chooses
	planned   *db.Queries            // as reads, for statements that Postgres plans with their values
	committer *groupcommit.Committer // runs the writes of stores
	feed      *feed.Hub
	exchanges *feed.Hub // wakes the readers of records
	recorder  *exchange.Recorder
	faults    *faults.Injector
	// faultNames are the operations that a fault rule may name.
	faultNames []string
	// recordedOperations are the operations in the records of sandboxes.
	recordedOperations []string
	pets               *sharedRead[any, ownPet, *db.Pet]
	// pagesOfPets are different pages.
	pagesOfPets *sharedRead[any, pageOfPets, []db.PetListRow]
	// placedReads are the reads of pages, of requests that wait and of streams.
	placedReads placedReads
	// counts are exact counts, and pages that may read many rows. They may take longer than 250 ms, so
	// no second one of the same items starts meanwhile.
	counts   placedReads
	messages *sharedRead[storeKey, string, *db.MessageGetManyRow]
}

// New returns a Server. The error is an invalid address in TrustedProxies, or a
// mistake in the embedded spec or reference pages.
func New(options Options) (*Server, error) {
	options.setDefaults()
	reads := postgres.Reads{DB: options.DB}
	locks := admission.New(admission.Locks.Of(options.DB.LockWaits()))
	s := &Server{
		options: options,
		queries: db.New(options.DB),
		reads:   db.New(reads),
		planned: db.New(plannedByValues{reads}),
		faults:  faults.New(options.DB, options.Verifier, locks),
	}
	s.feed = feed.New(options.DB, s.queries.FeedEnds)
	s.exchanges = feed.New(options.DB, s.exchangeEnds)
	s.recorder = exchange.New(options.DB, s.exchanges, options.Log, options.Metrics.Recorded)
	s.pets = newPetReader(s.reads)
	reading := admission.Reads.Of(options.DB.LockWaits() * admission.ReadParts)
	s.pagesOfPets = s.newPageOfPetsReader(int(reading.OfOnePayer() / admission.ReadParts))
	places := admission.New(reading)
	s.placedReads, s.messages = newPlacedReads(placedLimits, places), newMessageReader(s.reads, places)
	spec, err := SpecFor(options.BaseURL)
	if err != nil {
		return nil, err
	}
	routes := s.routes()
	s.faultNames = faultNames(routes)
	for _, r := range routes {
		if r.Attributes&gate.NoRecord == 0 {
			s.recordedOperations = append(s.recordedOperations, r.Operation)
		}
	}
	s.gate, err = gate.New(options.Options, gate.API{
		Version: Version, Routes: routes, Spec: spec, Pages: pagesFor(spec), Hubs: []*feed.Hub{s.feed, s.exchanges}, Faults: s.faults, Recorder: s.recorder, Locks: locks,
	})
	if err != nil {
		return nil, err
	}
	s.counts = newPlacedReads(coalesce.Limits{Parallel: 1}, s.gate.Limits.Counts)
	s.committer = groupcommit.New(options.DB, locks)
	return s, nil
}

// ServeHTTP handles one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.gate.ServeHTTP(w, r) }

// ShutDown lets /readyz fail and ends what waits, as [gate.Gate.ShutDown] does.
func (s *Server) ShutDown() { s.gate.ShutDown() }

// Record writes the requests of sandboxes to their records until ctx ends.
func (s *Server) Record(ctx context.Context) { s.recorder.Run(ctx) }

// Routes lists every operation, in the order of the spec.
func (s *Server) Routes() []gate.Route { return s.gate.Routes() }

// Announce wakes the requests that wait for events of an account, after a commit with
// events.
func (s *Server) Announce(accountID int64) { s.feed.Announce(accountID) }
