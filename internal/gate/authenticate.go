package gate

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// authorize runs the checks that come before parameters, in the order of the API
// reference ("Errors"): API key, rate limit, scope, Accept and Content-Type.
func (g *Gate) authorize(c *gin.Context, r Route) error {
	if r.Scope == 0 {
		return nil
	}
	identity, err := g.authenticate(c)
	if failure, ok := errors.AsType[*httpjson.Error](err); ok {
		return g.Limits.countFailure(c, failure)
	}
	if err != nil {
		return err
	}
	state := requestOf(c)
	state.identity, state.reserved.payer = identity, identity.Payer()
	state.scope(g.options.DB, r)
	if identity.IsSandbox() {
		g.capture(c)
	}
	if limit, err := g.Limits.countRequest(c.Writer.Header(), identity, r.cost(c.Request)); err != nil {
		state.limitReached = limit
		return err
	}
	g.options.Known(c.Request.Context()) // after the limit, so that a key without tokens protects no connections
	switch {
	case !identity.Scope.Includes(r.Scope):
		return ErrInsufficientScope.WithMessage(fmt.Sprintf("The API key has the scope %s. This operation needs the scope %s.", identity.Scope, r.Scope))
	case !r.accepted(c.Request.Header):
		return httpjson.ErrNotAcceptable
	case r.has(Body) && !httpjson.IsJSON(c.Request) && !(r.has(OptionalBody) && httpjson.MayHaveNoBody(c.Request)):
		return httpjson.ErrUnsupportedContentType
	default:
		return nil
	}
}

// CheckKey returns why the API key of a request does not work any more, or why nobody knows. Call it
// after a wait, because somebody may have revoked the key or deleted the account meanwhile.
func (g *Gate) CheckKey(c *gin.Context) error {
	_, err := g.authenticate(c)
	return err
}

// credentialsOf returns the API key of a request.
func credentialsOf(r *http.Request) (credentials string, err error) {
	fields := r.Header["Authorization"]
	for _, field := range fields {
		if scheme, rest, _ := strings.Cut(field, " "); strings.EqualFold(scheme, "Bearer") {
			credentials = strings.Trim(rest, " ")
		}
	}
	switch {
	case credentials == "": // such as Bearer alone, if the variable of the client is not set
		return "", ErrMissingAPIKey
	case len(fields) > 1: // ambiguous
		return "", ErrInvalidAPIKey
	default:
		return credentials, nil
	}
}

// authenticate verifies the API key of the request (RFC 6750, section 2.1).
func (g *Gate) authenticate(c *gin.Context) (auth.Identity, error) {
	r := c.Request
	credentials, err := credentialsOf(r)
	if err != nil {
		return auth.Identity{}, err
	}
	var identity auth.Identity
	ctx := g.options.DB.ForNoAccount(r.Context())
	err = postgres.RetryRead(ctx, func() (err error) {
		identity, err = g.options.Verifier.Verify(ctx, credentials, func() (netip.Addr, bool) { return g.Limits.overFailureLimit(c) })
		return err
	})
	if errors.Is(err, auth.ErrInvalidKey) {
		return auth.Identity{}, ErrInvalidAPIKey
	}
	return identity, err
}
