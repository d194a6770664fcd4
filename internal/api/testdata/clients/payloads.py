"""Reads an event of each type with the models of openapi-3.1.json.

`make clients` runs it with a file of events.
"""

import json
import sys

import petstore_events as petstore
import pydantic

with open(sys.argv[1], encoding="utf-8") as file:
    events = json.load(file)

types = set()
for event in events:
    parsed = petstore.WebhookEvent.model_validate(event).root
    name = "".join(word.capitalize() for word in event["type"].split("."))
    assert type(parsed) is getattr(petstore, f"{name}Event"), (type(parsed), event)
    for field, resource in event["data"].items():
        assert isinstance(getattr(parsed.data, field), pydantic.BaseModel), (field, resource)
    if isinstance(parsed, petstore.OrderPlacedEvent):
        assert parsed.data.order.petId.root == parsed.data.inventory.petId.root
        del event["data"]["order"]
        try:
            petstore.WebhookEvent.model_validate(event)
        except pydantic.ValidationError:
            pass
        else:
            raise AssertionError("an order.placed event without an order is valid")
    types.add(event["type"])
assert len(types) == 16, types
print(f"  {len(events)} events of {len(types)} types")
