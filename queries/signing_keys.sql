-- name: SigningKeyGet :one
SELECT secret
FROM signing_keys
WHERE purpose = @purpose;
