package api

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/event"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
)

const (
	// maxMessagesPerRead is the maximum number of messages whose reads share a statement.
	maxMessagesPerRead = 100
	// messageQueued is the status of a message that waits for its delivery.
	messageQueued = "queued"
)

// message is the Message schema of the spec.
type message = event.Message

func messageFrom(row db.Message) message {
	return message{ID: row.ID, Message: row.Message, Status: row.Status, CreatedAt: row.CreatedAt.UTC()}
}

// messageIDPattern matches the ids of messages.
var messageIDPattern = regexp.MustCompile(`^msg_[0-9a-f]{32}$`)

func (s *Server) queueMessage(c *gin.Context) error {
	in := s.decode(c, keyed, required("message"), readOnly("id", "status", "createdAt"))
	text := in.Text("message", 1, maxMessageLength)
	if err := in.Err(); err != nil {
		return err
	}
	return s.post(c, in, groupcommit.Write{Creates: account.Messages, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		id, createdAt := state.CreateMessage(*text)
		path, queued := "/messages/"+id, message{ID: id, Message: *text, Status: messageQueued, CreatedAt: createdAt.UTC()}
		if err := emit(state, event.MessageQueued, path, affected{Message: &queued}); err != nil {
			return refused(err)
		}
		body, err := httpjson.Encode(queued)
		return groupcommit.Response{Status: http.StatusAccepted, Location: path, Body: body}, err
	}})
}

func (s *Server) getMessage(c *gin.Context) error {
	id := c.Param("messageId")
	if !messageIDPattern.MatchString(id) {
		return errMessageNotFound
	}
	row, err := s.reads.MessageGet(c.Request.Context(), db.MessageGetParams{AccountID: gate.Caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errMessageNotFound)
	}
	wait := gate.PreferredWait(c)
	if wait > 0 && row.Status == messageQueued {
		if row, err = s.awaitMessage(c, row, wait); err != nil {
			return err
		}
	}
	gate.ApplyWait(c.Writer.Header(), wait)
	return writeResource(c, messageFrom(row))
}

// awaitMessage waits until a queued message has another status, and returns it. It returns
// the queued message after the time or when the server shuts down.
func (s *Server) awaitMessage(c *gin.Context, row db.Message, wait time.Duration) (db.Message, error) {
	err := s.gate.Await(c, s.watchedBy(c), wait, gate.Seen{More: true}, func(ctx context.Context) (gate.Seen, error) {
		found, err := s.messages.Do(ctx, storeKey{gate.Caller(c).Payer(), row.AccountID}, row.ID)
		if err != nil {
			return gate.Seen{}, err
		}
		if found == nil {
			return gate.Seen{}, errMessageNotFound
		}
		row = found.Message
		return gate.Seen{Newest: found.LastSequence, Found: row.Status != messageQueued}, nil
	})
	return row, err
}

// storeKey names a store and the account that pays for it.
type storeKey struct{ payer, account int64 }

// newMessageReader shares the reading of messages among the requests of an account that
// wait. Each read takes a place of its payer. A message that does not exist is nil.
func newMessageReader(queries *db.Queries, places *admission.Pool) *sharedRead[storeKey, string, *db.MessageGetManyRow] {
	limits := placedLimits
	limits.Inputs = maxMessagesPerRead
	return shareReads(limits, func(ctx context.Context, store storeKey, ids []string) ([]*db.MessageGetManyRow, error) {
		rows, err := queries.MessageGetMany(ctx, db.MessageGetManyParams{AccountID: store.account, Ids: ids})
		if err != nil {
			return nil, err
		}
		found := make(map[string]*db.MessageGetManyRow, len(rows))
		for i := range rows {
			found[rows[i].Message.ID] = &rows[i]
		}
		messages := make([]*db.MessageGetManyRow, len(ids))
		for i, id := range ids {
			messages[i] = found[id]
		}
		return messages, nil
	}).taking(places, func(store storeKey) (payer, weight int64) { return store.payer, admission.ReadParts })
}

// listMessages lists the caller's messages, newest first.
func (s *Server) listMessages(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, newestFirst)
	return writePage(s, c, params, p, list[db.Message, message]{
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
