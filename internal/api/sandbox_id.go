package api

import (
	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
)

// currentSandbox is the id that names the sandbox of the API key.
const currentSandbox = "current"

// readSandboxID reads the parameter sandboxId of the path.
func readSandboxID(c *gin.Context, params *httpjson.Params) string {
	id := c.Param("sandboxId")
	if _, ok := account.ParseSandboxID(id); !ok && id != currentSandbox {
		params.Reject("sandboxId", "invalid_format", "`sandboxId` must be `current` or the id of a sandbox, such as `sbx_42`.")
	}
	return id
}

// sandboxOf returns the live sandbox that an id in the path names, as [readSandboxID]
// returns it. The key of the request must be one of the sandbox or of its parent. The
// error is [errSandboxNotFound], or [errNotASandbox] if the id is current and the key
// is not one of a sandbox.
func (s *Server) sandboxOf(c *gin.Context, id string) (db.SandboxGetRow, error) {
	caller := gate.Caller(c)
	wanted := db.SandboxGetParams{ParentID: caller.Payer()}
	switch {
	case id != currentSandbox:
		wanted.ID, _ = account.ParseSandboxID(id) // 0 names no account
	case !caller.IsSandbox():
		return db.SandboxGetRow{}, errNotASandbox
	default:
		wanted.ID = caller.AccountID
	}
	if caller.IsSandbox() && wanted.ID != caller.AccountID {
		return db.SandboxGetRow{}, errSandboxNotFound
	}
	row, err := s.reads.SandboxGet(c.Request.Context(), wanted)
	return row, orNotFound(err, errSandboxNotFound)
}
