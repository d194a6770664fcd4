package api

import (
	"context"
	"encoding/hex"
	"net/http"
	"regexp"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
)

// message is the Message schema of the spec.
type message = event.Message

func messageFrom(row db.Message) message {
	return message{ID: row.ID, Message: row.Message, Status: row.Status, CreatedAt: row.CreatedAt.UTC()}
}

// messageIDPattern matches the ids that newMessageID returns.
var messageIDPattern = regexp.MustCompile(`^msg_[0-9a-f]{32}$`)

// newMessageID returns an opaque id. Ids sort by time.
func newMessageID() (string, error) {
	id, err := uuid.NewV7()
	return "msg_" + hex.EncodeToString(id[:]), err
}

func (s *Server) queueMessage(c *gin.Context) error {
	in := s.decode(c, required("message"), readOnly("id", "status", "createdAt"))
	text := in.Text("message", 1, maxMessageLength)
	if err := in.Err(); err != nil {
		return err
	}
	id, err := newMessageID()
	if err != nil {
		return err
	}
	return s.post(c, in, groupcommit.Write{Creates: account.Messages, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		createdAt := state.CreateMessage(groupcommit.Message{ID: id, Text: *text})
		path, queued := "/messages/"+id, message{ID: id, Message: *text, Status: "queued", CreatedAt: createdAt.UTC()}
		if err := emit(state, event.MessageQueued, path, affected{Message: &queued}); err != nil {
			return refused(err)
		}
		body, err := httpjson.Encode(queued)
		return groupcommit.Response{Status: http.StatusAccepted, Location: path, Body: body}, err
	}})
}

func (s *Server) getMessage(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	id := c.Param("messageId")
	if !messageIDPattern.MatchString(id) {
		return errMessageNotFound
	}
	row, err := s.reads.MessageGet(c.Request.Context(), db.MessageGetParams{AccountID: caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errMessageNotFound)
	}
	return httpjson.WriteResource(c.Writer, c.Request, messageFrom(row))
}

// listMessages lists the caller's messages, newest first.
func (s *Server) listMessages(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, newestFirst)
	if err := params.Err(); err != nil {
		return err
	}
	return writePage(s, c, p, list[db.Message, message]{
		find: func(ctx context.Context) ([]db.Message, error) {
			return s.reads.MessageList(ctx, db.MessageListParams{AccountID: p.account, BeforeID: p.after.Key, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			return s.reads.MessageCount(ctx, p.account)
		},
		item:     messageFrom,
		cursorOf: func(row db.Message) httpjson.Position { return httpjson.Position{Key: row.ID} },
	})
}
