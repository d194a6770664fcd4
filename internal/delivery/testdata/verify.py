"""Verifies requests with the Python library of Standard Webhooks. It reads
{secrets: [...], requests: [{headers, body}]} from stdin. Each secret must verify each
request, and no secret a changed one."""

import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

given = json.load(sys.stdin)
verified = 0
for secret in given["secrets"]:
    for request in given["requests"]:
        event = Webhook(secret).verify(request["body"], request["headers"])
        assert event["id"] == request["headers"]["webhook-id"]
        try:
            Webhook(secret).verify(request["body"] + " ", request["headers"])
        except WebhookVerificationError:
            pass
        else:
            raise AssertionError("a changed body was accepted")
        verified += 1
print(verified)
