package api

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/docs"
	"petstore/internal/feed"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
	"petstore/internal/webhook"
)

// The errors of the operations on resources, by status.
var (
	errInvalidIdempotencyKey = &httpjson.Error{Status: 400, Code: "invalid_idempotency_key", Message: "The Idempotency-Key is invalid. Correct the header as `errors` says.", Remedy: "Send the header once, with 1 to 255 visible ASCII characters, best a random UUID. Do not send it to an operation that returns a secret."}
	errInvalidLastEventID    = httpjson.ErrInvalidParameter.WithViolations([]httpjson.Violation{{Header: "Last-Event-ID", Code: "invalid_format", Message: "`Last-Event-ID` must be the id of an event from the stream."}})

	errPetNotFound       = &httpjson.Error{Status: 404, Code: "pet_not_found", Message: "The pet does not exist. Check its id.", Remedy: "Find the id with `GET /pets`. Another client may have deleted the pet."}
	errCategoryNotFound  = &httpjson.Error{Status: 404, Code: "category_not_found", Message: "The category does not exist. Check its id.", Remedy: "Find the id with `GET /categories`. Another client may have deleted the category."}
	errOrderNotFound     = &httpjson.Error{Status: 404, Code: "order_not_found", Message: "The order does not exist. Check its id.", Remedy: "Find the id with `GET /store/orders`. A cancelled order no longer exists."}
	errInventoryNotFound = &httpjson.Error{Status: 404, Code: "inventory_not_found", Message: "The pet does not exist, so it has no inventory entry. Check its id.", Remedy: "Find the pet's id with `GET /pets`. Every pet has an inventory entry from its creation to its deletion."}
	errMessageNotFound   = &httpjson.Error{Status: 404, Code: "message_not_found", Message: "Your account has no message with this id. Check the id and the account of your key.", Remedy: "Use the id from the response to `POST /messages`, with a key of the same account."}
	errAPIKeyNotFound    = &httpjson.Error{Status: 404, Code: "api_key_not_found", Message: "Your account has no API key with this id, or the key is revoked. Check the id.", Remedy: "Find the id with `GET /account/api-keys`, with a key of the same account. You cannot rotate a revoked key. Create a new one."}
	errRequestNotFound   = &httpjson.Error{Status: 404, Code: "request_not_found", Message: "The sandbox has no recorded request with this id. It may be older than 24 hours, or deleted. Check the id.", Remedy: "List the requests with `GET /sandboxes/{sandboxId}/requests`. A sandbox keeps its newest 5,000, for at most 24 hours and up to 16 MiB."}
	errSandboxNotFound   = &httpjson.Error{Status: 404, Code: "sandbox_not_found", Message: "Your account has no sandbox with this id, or it is deleted or expired. Check the id.", Remedy: "Find the id with `GET /sandboxes`. A sandbox ends when it is deleted or at its `expiresAt`. Create another one in that case."}
	errSampleNotFound    = &httpjson.Error{Status: 404, Code: "sample_not_found", Message: "Your account has no sample with this name. Check the name and the account of your key.", Remedy: "Find the name with `GET /samples`. Another client may have deleted the sample."}
	errWebhookNotFound   = &httpjson.Error{Status: 404, Code: "webhook_not_found", Message: "Your account has no webhook with this id. Check the id and the account of your key.", Remedy: "Find the id with `GET /webhooks`, with a key of the same account. A deleted webhook no longer exists."}
	errEventNotFound     = &httpjson.Error{Status: 404, Code: "event_not_found", Message: "The feed of your account has no event with this id. Check the id and the account of your key.", Remedy: "Use the id of an event from `GET /events`, with a key of the same account. Events are kept for 30 days. A `webhook.test` event is in no feed."}
	errDeliveryNotFound  = &httpjson.Error{Status: 404, Code: "delivery_not_found", Message: "The webhook has no delivery with this id. Check the id.", Remedy: "Find the id with `GET /webhooks/{webhookId}/deliveries`. Deliveries are kept for 30 days."}

	errCategoryExists    = &httpjson.Error{Status: 409, Code: "category_exists", Message: "Another category has this name, ignoring case. Choose another name.", Remedy: "Use the existing category (`GET /categories?name=`), or choose another name."}
	errCategoryInUse     = &httpjson.Error{Status: 409, Code: "category_in_use", Message: "The category has pets, so it cannot be deleted. Move or delete them first.", Remedy: "Move its pets to another category with `PATCH /pets/{petId}`, or delete them. Then retry."}
	errPetInUse          = &httpjson.Error{Status: 409, Code: "pet_in_use", Message: "The pet has orders, so it cannot be deleted. Set its status to sold instead.", Remedy: "Keep the pet and set its status to `sold`. You can delete a pet only after all its orders are cancelled."}
	errPetNotAvailable   = &httpjson.Error{Status: 409, Code: "pet_not_available", Message: "The pet is not available, so it cannot be ordered. Order an available pet.", Remedy: "Order another pet, or wait until this one is available. `PUT /store/inventory/{petId}` with more than 0 units makes it available."}
	errInsufficientStock = &httpjson.Error{Status: 409, Code: "insufficient_stock", Message: "The pet has fewer units in stock than ordered. Order fewer units.", Remedy: "Order fewer units, or raise the stock with `PUT /store/inventory/{petId}`."}
	errInvalidTransition = &httpjson.Error{Status: 409, Code: "invalid_transition", Message: "The resource cannot change to this state. Read it again and choose an allowed change.", Remedy: "Read the resource again and choose a change that its state allows. The guide Stock and states has the rules."}
	errOrderComplete     = &httpjson.Error{Status: 409, Code: "order_complete", Message: "The order is complete, so it cannot be cancelled.", Remedy: "Keep the order. Its units have left for good."}

	errLastAdminKey = &httpjson.Error{Status: 409, Code: "last_admin_key", Message: "This is the account's last live API key of scope admin. Create another one before you revoke it.", Remedy: "Create another key of scope `admin` with `POST /account/api-keys`, and use it to revoke this one. The operator can revoke every key of an account with `petstore key revoke`."}

	errTooManySandboxes = &httpjson.Error{Status: 409, Code: "too_many_sandboxes", Message: "Your account has 100 live sandboxes, or 200 with those being deleted, which is the maximum. Delete one, or wait a few minutes.", Remedy: "List the sandboxes with `GET /sandboxes`, and delete one that you do not need. A sandbox also ends at its `expiresAt`. Send an earlier `expiresAt`. If you delete many, wait a few minutes until their data is deleted, or reset a sandbox instead."}
	errNestedSandbox    = &httpjson.Error{Status: 409, Code: "nested_sandbox", Message: "Your API key is one of a sandbox, which cannot have sandboxes or samples. Use a key of the account that created it.", Remedy: "Use a key of the account that created the sandbox. A sandbox's own key can read, reset and delete its sandbox as `/sandboxes/current`."}
	errTooManySamples   = &httpjson.Error{Status: 409, Code: "too_many_samples", Message: "Your account has 20 samples, or 40 with those being deleted, which is the maximum. Delete a sample, or sandboxes of deleted samples, or wait a few minutes.", Remedy: "List the samples with `GET /samples`, and delete one that you do not need. If there are 40 with those being deleted, wait: a deleted sample counts until a few minutes after it and its sandboxes have ended."}
	errSampleExists     = &httpjson.Error{Status: 409, Code: "sample_exists", Message: "A sample has this name. Choose another name, or delete the sample first.", Remedy: "Choose another name, or delete the sample with `DELETE /samples/{name}` first. Sandboxes of the deleted sample still return to it."}
	errBuiltInSample    = &httpjson.Error{Status: 409, Code: "built_in_sample", Message: "The sample is built in, so it cannot be deleted.", Remedy: "Keep the sample. Every account has it."}
	errSandboxFull      = &httpjson.Error{Status: 409, Code: "sandbox_full", Message: "The sandbox has 10,000 resources of this kind, which is the maximum. Reset the sandbox or delete some.", Remedy: "Reset the sandbox with `POST /sandboxes/{sandboxId}/reset`, or delete pets, categories and open orders that you do not need. Only a reset deletes messages. A sandbox holds at most 10,000 pets, categories, orders and messages each."}

	errNotASandbox    = &httpjson.Error{Status: 409, Code: "not_a_sandbox", Message: "Your API key is not one of a sandbox. Send the id of a sandbox instead of current, or use a key of a sandbox.", Remedy: "Send the id of a sandbox, such as `sbx_42`, or use an API key of the sandbox. Only sandboxes can be reset and have faults."}
	errTooManyAPIKeys = &httpjson.Error{Status: 409, Code: "too_many_api_keys", Message: "Your account has 100 live API keys, or 10,000 in its list, which is the maximum. Rotate a key, or revoke one, which leaves the list after 30 days.", Remedy: "List the keys with `GET /account/api-keys`, and revoke one that you do not need. A key is live if it is neither revoked nor expired. A revoked key leaves the list after 30 days, so rotate a key instead of replacing it."}

	errTooManyWebhooks   = &httpjson.Error{Status: 409, Code: "too_many_webhooks", Message: "Your account has 20 webhooks, or 100 with those just deleted, which is the maximum. Delete one, or wait ten minutes.", Remedy: "List the webhooks with `GET /webhooks`, and delete one that you do not need. If you delete many, wait ten minutes: deleted ones count until then, if there are 100 of both kinds."}
	errTooManyDeliveries = &httpjson.Error{Status: 409, Code: "too_many_deliveries", Message: "Your account has too many pending deliveries. Wait until its webhooks have accepted some.", Remedy: "Wait until your webhooks have accepted some of their deliveries, and replay then. `GET /webhooks/{webhookId}/deliveries?status=pending` lists them. An account may have 100,000 pending deliveries of enabled webhooks before a replay, and a sandbox 1,000."}
	errWebhookDisabled   = &httpjson.Error{Status: 409, Code: "webhook_disabled", Message: "The webhook is disabled. Enable it first.", Remedy: "Enable the webhook with `PATCH /webhooks/{webhookId}` and `{\"status\": \"enabled\"}`. Then retry."}

	errIdempotencyInProgress = &httpjson.Error{Status: 409, Code: "idempotency_in_progress", Message: "Another request with this Idempotency-Key is still running. Retry after the time in Retry-After.", Header: [2]string{"Retry-After", "1"}, Remedy: "Wait as many seconds as `Retry-After` says. Then send the same request again to get its response."}

	errCursorExpired = &httpjson.Error{Status: 410, Code: "cursor_expired", Message: "The feed of your account does not have the event in `after`. List your resources again, and follow the feed from `after=latest`.", Remedy: "The event is older than 30 days, of another account, or was lost in a failover or a restore. List your resources again, and follow the feed from `after=latest`. In a replay, omit `after` instead."}

	errReplayExpired = errCursorExpired.WithMessage("The feed of your account does not have the event in `after`. Omit `after` to replay all that it has.")

	errUnknownSample        = &httpjson.Error{Status: 422, Code: "unknown_sample", Message: "The sample in sample does not exist. Save it first or send the name of another one.", Remedy: "Use a name from `GET /samples`. Another client may have deleted the sample."}
	errUnknownSandbox       = &httpjson.Error{Status: 422, Code: "unknown_sandbox", Message: "The sandbox in from does not exist, or it is deleted or expired. Send the id of a live sandbox.", Remedy: "Use an id from `GET /sandboxes`. A sandbox ends when it is deleted or at its `expiresAt`."}
	errUnknownCategory      = &httpjson.Error{Status: 422, Code: "unknown_category", Message: "The category in categoryId does not exist. Create it first or send the id of another one.", Remedy: "Create the category first, or use an id from `GET /categories`."}
	errIdempotencyKeyReused = &httpjson.Error{Status: 422, Code: "idempotency_key_reused", Message: "This Idempotency-Key was used for another path or body. Use a new key for each new request.", Remedy: "Use a new `Idempotency-Key` for every new request. Send a key again only with exactly the same request."}
	errExpiryBeyondCreator  = &httpjson.Error{Status: 422, Code: "expiry_beyond_creator", Message: "The new secret would work longer than your own API key. Use a key that expires later. For a new key or sandbox, you can send an earlier `expiresAt` instead.", Remedy: "A key creates or rotates no key, and creates no sandbox, that expires later than itself. `GET /account` shows its expiry. Without `expiresAt`, a new key or sandbox expires no later than that. Rotate a key that expires later with one that lives as long."}
	errURLNotAllowed        = &httpjson.Error{Status: 422, Code: "url_not_allowed", Message: "`url` is not allowed. Send an https URL with a public host.", Remedy: "Send an `https` URL whose host has only public addresses, with port 443 or 8443 and without a user name or fragment. The operator of the server can allow other networks."}
	errUnknownPet           = &httpjson.Error{Status: 422, Code: "unknown_pet", Message: "The pet in petId does not exist. Create it first or send the id of another one.", Remedy: "Create the pet first, or use an id from `GET /pets`."}
)

// errorReference lists every error for /docs/errors, in the order of the API reference
// ("Errors").
var errorReference = describe(
	withRemedy(httpjson.ErrInvalidJSON, "Check the body with a JSON parser. It must be UTF-8 without a byte order mark. It must be one value with unique field names and at most 32 levels."),
	withRemedy(httpjson.ErrValidationFailed, "Correct every field that `errors` lists. `pointer` names the field, and `code` and `message` say what is wrong. `errors` lists missing required fields too."),
	withRemedy(httpjson.ErrUnsupportedContentType, "Send the header `Content-Type: application/json`, and do not compress the body. PATCH also accepts `application/merge-patch+json`."),
	withRemedy(httpjson.ErrInvalidParameter, "Correct every parameter that `errors` lists. Remove unknown and empty parameters. In a query, write the `+` of a time's offset as `%2B`."),
	errInvalidIdempotencyKey, gate.ErrInvalidConsistency,
	withRemedy(httpjson.ErrInvalidCursor, "Follow the URLs in the `Link` header instead of building them. Start again without `cursor` when you change the filters or the sort, and after the restore of a backup."),

	gate.ErrMissingAPIKey, gate.ErrInvalidAPIKey, gate.ErrInsufficientScope,

	gate.ErrRouteNotFound, errPetNotFound, errCategoryNotFound, errOrderNotFound, errInventoryNotFound,
	errMessageNotFound, errAPIKeyNotFound, errRequestNotFound, errSandboxNotFound, errSampleNotFound,
	errWebhookNotFound, errEventNotFound, errDeliveryNotFound, gate.ErrMethodNotAllowed,
	withRemedy(httpjson.ErrNotAcceptable, "Send `Accept: application/json`, or no `Accept` at all."),

	errCategoryExists, errCategoryInUse, errPetInUse, errPetNotAvailable, errInsufficientStock,
	errInvalidTransition, errOrderComplete,

	errLastAdminKey,

	errTooManySandboxes, errNestedSandbox, errTooManySamples, errSampleExists, errBuiltInSample, errSandboxFull,
	errNotASandbox, errTooManyAPIKeys,

	errTooManyWebhooks, errTooManyDeliveries, errWebhookDisabled,

	errIdempotencyInProgress,

	withRemedy(httpjson.ErrRequestTimeout, "Send the whole request within 10 seconds. The server closes the connection. Open a new one and retry."),

	errCursorExpired, gate.ErrOperationSunset,
	withRemedy(httpjson.ErrPreconditionFailed, "Read the resource again, decide again, and send the change with the new tag, in its quotes. Lists, the summary, the account, API keys, sandboxes, samples, fault rules and the report have no tag. Send neither `If-Match` nor `If-None-Match` there. A write with `If-None-Match` succeeds only if the resource does not have the tag."),
	withRemedy(httpjson.ErrBodyTooLarge, "Send a smaller body. The default limit is 64 KiB (65,536 bytes). The operator of the server can change it."),
	errUnknownCategory, errUnknownSample, errUnknownSandbox, errExpiryBeyondCreator, errURLNotAllowed,
	errUnknownPet, errIdempotencyKeyReused,

	gate.ErrRateLimited, // all rate limits have this code

	gate.ErrTooManyConcurrent,

	gate.InjectedErrors[429], gate.InjectedErrors[500], gate.InjectedErrors[502], gate.InjectedErrors[503], gate.InjectedErrors[504],

	gate.ErrInternal, gate.ErrUnavailable,
)

// withRemedy returns an error of any API with what a client of this one can do.
func withRemedy(err *httpjson.Error, text string) *httpjson.Error {
	remedied := *err
	remedied.Remedy = text
	return &remedied
}

func describe(all ...*httpjson.Error) []docs.Problem {
	list := make([]docs.Problem, len(all))
	for i, one := range all {
		list[i] = docs.Problem{Status: one.Status, Code: one.Code, Meaning: one.Message, Remedy: one.Remedy}
	}
	return list
}

// apiErrors has the errors of other packages that mean the same in all operations. An account
// that is closed is the one of the caller, so that its keys are revoked or expired.
var apiErrors = []struct {
	of  error
	api *httpjson.Error
}{
	{account.ErrClosed, gate.ErrInvalidAPIKey},
	{account.ErrFull, errSandboxFull},
	{account.ErrTooManySandboxes, errTooManySandboxes},
	{account.ErrNoSample, errUnknownSample},
	{account.ErrSampleExists, errSampleExists},
	{account.ErrTooManySamples, errTooManySamples},
	{account.ErrNoSandbox, errUnknownSandbox}, // it has ended meanwhile
	{auth.ErrNoKey, errAPIKeyNotFound},
	{auth.ErrLastAdminKey, errLastAdminKey},
	{auth.ErrTooManyKeys, errTooManyAPIKeys},
	{groupcommit.ErrKeyInUse, errIdempotencyInProgress},
	{groupcommit.ErrKeyReused, errIdempotencyKeyReused},
	{webhook.ErrNotFound, errWebhookNotFound},
	{webhook.ErrTooMany, errTooManyWebhooks},
	{webhook.ErrTooManyDeliveries, errTooManyDeliveries},
	{webhook.ErrNoAccount, gate.ErrInvalidAPIKey},
}

// apiError returns the error of the API for an error of a handler. It returns other errors,
// for example of the database, as they are.
func apiError(err error) error {
	for _, one := range apiErrors {
		if errors.Is(err, one.of) {
			return one.api
		}
	}
	if expired, is := errors.AsType[*feed.ExpiredError](err); is {
		if expired.Oldest == nil {
			return errCursorExpired
		}
		return errCursorExpired.WithMessage(fmt.Sprintf("The feed of your account has no event %s. The oldest event in it is %s. List your resources again, and follow the feed from `after=latest`.", expired.Cursor, expired.Oldest))
	}
	return err
}

// orNotFound returns notFound instead of [pgx.ErrNoRows].
func orNotFound(err error, notFound *httpjson.Error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return notFound
	}
	return err
}
