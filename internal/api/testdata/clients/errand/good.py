"""An errand in the shop with httpx and the retries of httpx-retries."""

import os
import re
import uuid

import httpx
from httpx_retries import Retry, RetryTransport

retry = Retry(
    total=8,
    allowed_methods=["GET", "PUT", "DELETE", "POST"],  # each POST has an Idempotency-Key
    status_forcelist=[429, 500, 502, 503, 504],
    backoff_factor=0.1,
    backoff_jitter=1.0,
)
shop = httpx.Client(
    base_url=os.environ["PETSTORE_URL"],
    headers={"Authorization": f"Bearer {os.environ['PETSTORE_API_KEY']}"},
    transport=RetryTransport(retry=retry),
    timeout=30,
)


def send(method, path, json=None, **headers):
    response = shop.request(method, path, json=json, headers=headers)
    response.raise_for_status()
    return response


def post(path, json):
    return send("POST", path, json, **{"Idempotency-Key": str(uuid.uuid4())})


page = "/pets?limit=50"
while page:
    link = re.search('<([^>]*)>; rel="next"', send("GET", page).headers["Link"])
    page = link and link[1]
post("/pets", {"name": "Xochi", "categoryId": 1})
for quantity in (1, 2, 3):
    post("/store/orders", {"petId": 1, "quantity": quantity})
stock = send("GET", "/store/inventory/1")
send("PUT", "/store/inventory/1", {"quantity": stock.json()["quantity"] + 10}, **{"If-Match": stock.headers["ETag"]})
message = post("/messages", {"message": "Xochi sends her regards"})
send("GET", message.headers["Location"], Prefer="wait=1")
