package api

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/faults"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
)

// Limits of the fields of a fault rule. openapi.yaml has the same.
const (
	maxFaultDelay = 10_000 // milliseconds
	maxFaultFirst = 1_000_000
	maxFaultSeed  = 1<<53 - 1 // JavaScript reads it exactly
)

// faultRule is the FaultRule schema of the spec.
type faultRule struct {
	Operation   string   `json:"operation"`
	Effect      string   `json:"effect"`
	Status      *int32   `json:"status,omitempty"`
	DelayMs     *int32   `json:"delayMs,omitempty"`
	When        *string  `json:"when,omitempty"`
	First       *int64   `json:"first,omitempty"`
	Probability *float64 `json:"probability,omitempty"`
	Seed        *int64   `json:"seed,omitempty"`
	Matched     int64    `json:"matched"`
}

func faultRuleFrom(row faults.Rule) faultRule {
	return faultRule{
		Operation: row.Operation, Effect: row.Effect, Status: row.Status, DelayMs: row.DelayMs, When: row.CloseWhen,
		First: row.First, Probability: row.Probability, Seed: row.Seed, Matched: row.Matched,
	}
}

// faultRules is the Faults schema of the spec.
type faultRules struct {
	Rules []faultRule `json:"rules"`
}

func faultRulesFrom(rows []faults.Rule) faultRules {
	return faultRules{transform(rows, faultRuleFrom)}
}

// setSandboxFaults replaces the fault rules of a sandbox. They take effect in this
// process before it responds, and in the others within a second.
func (s *Server) setSandboxFaults(c *gin.Context, id string) error {
	rules, err := s.readFaults(s.decode(c))
	if err != nil {
		return err
	}
	rows, err := s.replaceFaultRules(c, id, rules)
	if err != nil {
		return err
	}
	return httpjson.Write(c.Writer, faultRulesFrom(rows))
}

// getSandboxFaults returns the fault rules of a sandbox.
func (s *Server) getSandboxFaults(c *gin.Context, id string) error {
	sandbox, err := s.sandboxOf(c, id)
	if err != nil {
		return err
	}
	rows, err := s.reads.FaultList(c.Request.Context(), sandbox.ID)
	if err != nil {
		return err
	}
	return httpjson.WriteUntagged(c.Writer, c.Request, faultRulesFrom(rows))
}

// deleteSandboxFaults deletes the fault rules of a sandbox.
func (s *Server) deleteSandboxFaults(c *gin.Context, id string) error {
	if _, err := s.replaceFaultRules(c, id, nil); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}

// replaceFaultRules replaces the rules of the sandbox that an id in the path names, and
// returns the new ones.
func (s *Server) replaceFaultRules(c *gin.Context, id string, rules []db.FaultCreateParams) (rows []faults.Rule, err error) {
	_, err = s.changeSandbox(c, id, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries, accountID int64) (err error) {
		rows, err = faults.Replace(ctx, queries, accountID, rules)
		return err
	})
	return rows, err
}

// readFaults reads the rules in a body, or the exercise that has them.
func (s *Server) readFaults(in *input) ([]db.FaultCreateParams, error) {
	var rules []db.FaultCreateParams
	in.RequireEither("rules", "exercise")
	if in.Has("exercise") {
		name := in.Enum("exercise", exerciseNames()...)
		in.Exclude("must not be there with `exercise`. Send one of them.", "rules")
		for _, one := range faults.Exercises {
			if name != nil && one.Name == *name {
				rules = slices.Clone(one.Rules)
			}
		}
	} else {
		for _, object := range in.Objects("rules", faults.MaxRules) {
			rules = append(rules, s.readFaultRule(object))
		}
	}
	for i := range rules {
		rules[i].Position = int32(i)
	}
	return rules, in.Err()
}

// exerciseNames returns the names of the exercises.
func exerciseNames() (names []string) {
	for _, one := range faults.Exercises {
		names = append(names, one.Name)
	}
	return names
}

// readFaultRule reads a rule. The effect decides which other fields the rule has.
func (s *Server) readFaultRule(in *httpjson.Object) db.FaultCreateParams {
	in.ReadOnly("matched")
	in.Require("operation", "effect")
	rule := db.FaultCreateParams{First: in.Integer("first", 1, maxFaultFirst), Probability: in.Share("probability")}
	if operation := in.Enum("operation", s.faultNames...); operation != nil {
		rule.Operation = *operation
	}
	effects := []string{faults.EffectStatus, faults.EffectDelay, faults.EffectClose}
	if rule.Operation == faults.DeliverWebhook {
		effects = []string{faults.EffectClose}
	}
	effect := in.Enum("effect", effects...)
	if effect != nil {
		rule.Effect = *effect
	}
	for _, field := range []struct {
		name, effect string
		read         func(name string)
	}{
		{"status", faults.EffectStatus, func(name string) { rule.Status = narrow(in.IntegerEnum(name, 429, 500, 502, 503, 504)) }},
		{"delayMs", faults.EffectDelay, func(name string) { rule.DelayMs = narrow(in.Integer(name, 1, maxFaultDelay)) }},
		{"when", faults.EffectClose, func(name string) { rule.CloseWhen = in.Enum(name, faults.CloseBefore, faults.CloseAfter) }},
	} {
		if effect != nil && *effect != field.effect {
			in.Exclude(fmt.Sprintf("belongs to the effect %#q. Remove it, or change `effect`.", field.effect), field.name)
			continue
		}
		if field.read(field.name); effect != nil {
			in.Require(field.name)
		}
	}
	if !in.Has("probability") {
		in.Exclude("belongs to `probability`. Remove it, or send `probability`.", "seed")
		return rule
	}
	if rule.Seed = in.Integer("seed", 0, maxFaultSeed); rule.Seed == nil {
		rule.Seed = new(rand.Int64N(maxFaultSeed + 1)) //nolint:gosec // need not be secret
	}
	return rule
}

// narrow converts a number in the range of int32, or nil.
func narrow(number *int64) *int32 {
	if number == nil {
		return nil
	}
	return new(int32(*number)) //nolint:gosec // the caller has checked the range
}

// faultNames returns the operations that a rule may name.
func faultNames(routes []gate.Route) []string {
	names := []string{faults.AnyOperation, faults.DeliverWebhook}
	for _, r := range routes {
		if r.HasFaults() {
			names = append(names, r.Operation)
		}
	}
	slices.Sort(names)
	return names
}
