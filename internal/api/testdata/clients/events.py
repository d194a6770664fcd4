"""A client of the stream of events with httpx-sse.

`make clients` runs it with PETSTORE_URL and PETSTORE_API_KEY. The client closes its
connection several times. It loses no event and gets none twice.
"""

import json
import os
import threading
import uuid

import httpx
from httpx_sse import connect_sse

changes, connections = 60, 4
shop = httpx.Client(
    base_url=os.environ["PETSTORE_URL"],
    headers={"Authorization": f"Bearer {os.environ['PETSTORE_API_KEY']}"},
    timeout=30,
)
wanted = [f"Newts {n} {uuid.uuid4()}" for n in range(changes)]


def create_categories():
    for name in wanted:
        shop.post("/categories", json={"name": name}).raise_for_status()


latest = shop.get("/events", params={"after": "latest"}).raise_for_status().links["next"]["url"]
last = httpx.URL(latest).params["after"]
writer = threading.Thread(target=create_categories)
writer.start()
names, sequences = [], []
while len(names) < changes:
    enough = len(names) + changes // connections
    with connect_sse(shop, "GET", "/events", headers={"Last-Event-ID": last}) as stream:
        stream.response.raise_for_status()
        for event in stream.iter_sse():
            last = event.id
            if not event.data:
                continue  # the server only says that there were no events up to this id
            body = json.loads(event.data)
            assert (body["id"], body["type"]) == (event.id, event.event), body
            sequences.append(body["sequence"])
            names.append(body["data"]["category"]["name"])
            if len(names) == enough:
                break
writer.join()
shop.close()
assert names == wanted, (names, wanted)
assert sequences == list(range(sequences[0], sequences[0] + changes)), sequences
print(f"  {len(names)} events in order over {connections} connections")
