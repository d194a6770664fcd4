package gate

import (
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/faults"
	"petstore/internal/httpjson"
)

// injection is a fault that was injected into a request.
type injection struct {
	*faults.Rule

	delayed time.Duration
}

// String returns the index of the rule and its effect, for the log.
func (i *injection) String() string {
	return strconv.Itoa(int(i.Position)) + "/" + i.Effect
}

// replacesResponse reports whether the client gets an injected error or no response,
// and the server did nothing.
func (i *injection) replacesResponse() bool {
	return i.Effect == faults.EffectStatus || i.Effect == faults.EffectClose && *i.CloseWhen == faults.CloseBefore
}

// closes reports whether there is a fault that closes the connection without a response.
func (i *injection) closes() bool { return i != nil && i.Effect == faults.EffectClose }

// injectFault injects a fault into a request of a sandbox, if a rule applies to it. The
// error is the injected one, [errConnectionClosed], one of delay, a database error, or says
// that the account has too many delayed requests.
func (g *Gate) injectFault(c *gin.Context) error {
	state := requestOf(c)
	if !state.identity.IsSandbox() || !state.route.HasFaults() || observes(c.Request) {
		return nil
	}
	rule, err := g.api.Faults.Choose(c.Request.Context(), state.identity.Payer(), state.identity.AccountID, state.route.Operation)
	if rule == nil {
		return err
	}
	if rule.Effect == faults.EffectDelay {
		payer := state.identity.Payer()
		if err := g.Limits.delays.Take(state.connection, payer, 1); err != nil {
			return err
		}
		defer g.Limits.delays.Give(payer, 1)
	}
	state.injected = &injection{Rule: rule}
	g.options.Metrics.Injected(rule.Effect)
	if rule.Effect != faults.EffectClose {
		c.Header("Petstore-Fault", strconv.Itoa(int(rule.Position)))
	}
	switch {
	case rule.Effect == faults.EffectStatus:
		return InjectedErrors[*rule.Status]
	case rule.Effect == faults.EffectDelay:
		return g.delay(c, state)
	case *rule.CloseWhen == faults.CloseBefore:
		return errConnectionClosed
	default:
		c.Writer = discarded{c.Writer}
		return nil
	}
}

// delay waits as long as a rule says, or until the server shuts down, and extends the
// deadline of the request by that time. Then it verifies the API key again. The error is
// [errClientGone], one of receiving the body or one of the verification.
func (g *Gate) delay(c *gin.Context, state *request) error {
	if state.route.has(Body) {
		// net/http notices that a client disconnects only after it has read the body.
		if _, err := g.receiveBody(c); err != nil {
			return err
		}
	}
	liftWriteDeadline(c)
	began := time.Now()
	timer := time.NewTimer(time.Duration(*state.injected.DelayMs) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.shutDown:
	case <-state.connection.Done():
	}
	state.injected.delayed = time.Since(began)
	if state.connection.Err() != nil {
		return errClientGone
	}
	g.extendDeadline(c, state.injected.delayed)
	return g.CheckKey(c)
}

// discarded is a response that the client does not get.
type discarded struct{ gin.ResponseWriter }

// WriteHeaderNow does nothing.
func (d discarded) WriteHeaderNow() {}

// Write discards a part of the body.
func (d discarded) Write(body []byte) (int, error) { return len(body), nil }

// WriteString discards a part of the body.
func (d discarded) WriteString(body string) (int, error) { return len(body), nil }

// Flush does nothing.
func (d discarded) Flush() {}

// Unwrap returns the response, for [http.ResponseController].
func (d discarded) Unwrap() http.ResponseWriter { return d.ResponseWriter }

const (
	injectedMessage = "A fault rule of the sandbox injected this error, and the server did nothing. Retry, or change the rules with PUT /sandboxes/current/faults."
	injectedRemedy  = "The header `Petstore-Fault` has the index of the rule. Retry as after a real error of this status. `GET /sandboxes/current/faults` lists the rules, and `DELETE` removes them."
)

// The errors that rules inject.
var (
	errInjected429 = &httpjson.Error{Status: 429, Code: "injected_fault", Message: injectedMessage, Header: [2]string{"Retry-After", "1"}, Remedy: injectedRemedy}
	errInjected500 = &httpjson.Error{Status: 500, Code: "injected_fault", Message: injectedMessage, Remedy: injectedRemedy}
	errInjected502 = &httpjson.Error{Status: 502, Code: "injected_fault", Message: injectedMessage, Remedy: injectedRemedy}
	errInjected503 = &httpjson.Error{Status: 503, Code: "injected_fault", Message: injectedMessage, Header: [2]string{"Retry-After", "1"}, Remedy: injectedRemedy}
	errInjected504 = &httpjson.Error{Status: 504, Code: "injected_fault", Message: injectedMessage, Remedy: injectedRemedy}
)

// InjectedErrors has the errors that rules inject, by status.
var InjectedErrors = map[int32]*httpjson.Error{429: errInjected429, 500: errInjected500, 502: errInjected502, 503: errInjected503, 504: errInjected504}
