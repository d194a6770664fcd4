"""A day in the shop with a Python client that openapi-generator generates from the spec.

`make clients` generates and runs it with PETSTORE_URL and PETSTORE_API_KEY.
story.go and story.ts are longer versions of the story.
"""

import os
import re
import uuid
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, urljoin, urlsplit

import petstore_client as petstore
from petstore_client.exceptions import (
    BadRequestException,
    ConflictException,
    UnauthorizedException,
)

url = os.environ["PETSTORE_URL"]
client = petstore.ApiClient(
    petstore.Configuration(host=url, access_token=os.environ["PETSTORE_API_KEY"])
)
pets, categories = petstore.PetsApi(client), petstore.CategoriesApi(client)
store, inventory = petstore.StoreApi(client), petstore.InventoryApi(client)
messages, accounts = petstore.MessagesApi(client), petstore.AccountsApi(client)


def step(text):
    print(f"  {text}")


def same(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def refused(exception, code, call, **arguments):
    """Calls an operation that must fail with this code, and returns the typed error."""
    try:
        call(**arguments)
    except exception as failure:
        assert isinstance(failure.data, petstore.Error), failure
        same((failure.data.code, failure.data.status), (code, failure.status))
        return failure.data
    raise AssertionError(f"{call.__name__} succeeded where {code} was due")


category = categories.create_category(
    petstore.NewCategory(name=f"Axolotls {uuid.uuid4()}", description="Salamanders that stay young")
)
new_pet, key = petstore.NewPet(name="Xochi", categoryId=category.id), str(uuid.uuid4())
created = pets.create_pet_with_http_info(new_pet, idempotency_key=key)
pet = created.data
same(pet.status, petstore.PetStatus.AVAILABLE)
same(created.headers["Location"], f"/pets/{pet.id}")
again = pets.create_pet_with_http_info(new_pet, idempotency_key=key)
same((again.data, again.headers["Idempotent-Replayed"]), (pet, "true"))
step(f"category {category.id}, pet {pet.id}, created once by two requests")

inventory.set_inventory(pet.id, petstore.InventoryUpdate(quantity=3))
ship_date = datetime(2030, 1, 2, 3, 4, 5, 600000, tzinfo=timezone.utc)
order = store.place_order(petstore.OrderInput(petId=pet.id, quantity=2, shipDate=ship_date))
same((order.quantity, order.ship_date, order.complete), (2, ship_date, False))
two_more = petstore.OrderInput(petId=pet.id, quantity=2)
refused(ConflictException, "insufficient_stock", store.place_order, order_input=two_more)
last = store.place_order(petstore.OrderInput(petId=pet.id))
stock = inventory.get_inventory_item(pet.id)
same((stock.quantity, stock.status), (0, petstore.PetStatus.PENDING))
sold_out = refused(ConflictException, "pet_not_available", store.place_order, order_input=petstore.OrderInput(petId=pet.id))
step(f"3 units ordered; one more: {sold_out.status} {sold_out.code}")

store.cancel_order(last.id)
same(inventory.get_inventory_item(pet.id).quantity, 1)
store.update_order(order.id, petstore.OrderPatch(complete=True))
refused(ConflictException, "order_complete", store.cancel_order, order_id=order.id)
step(f"order {last.id} cancelled, order {order.id} complete")

for name in ("Atl", "Metztli"):
    pets.create_pet(petstore.NewPet(name=name, categoryId=category.id, status=petstore.PetStatus.PENDING))
names, pages, cursor = [], 0, None
while pages == 0 or cursor:
    page = pets.list_pets_with_http_info(category_id=category.id, sort="name", limit=2, cursor=cursor)
    names += [one.name for one in page.data]
    link = re.search(r'<([^>]*)>; rel="next"', page.headers["Link"])
    cursor = parse_qs(urlsplit(urljoin(url, link[1])).query)["cursor"][0] if link else None
    pages += 1
same((names, pages), (["Atl", "Metztli", "Xochi"], 2))
step(f"{len(names)} pets on {pages} pages")

past = petstore.ApiKeyInput(name="old", scope=petstore.Scope.READ, expiresAt=datetime(2020, 1, 1, tzinfo=timezone.utc))
invalid = refused(BadRequestException, "validation_failed", accounts.create_api_key, api_key_input=past)
same([(fault.pointer, fault.code) for fault in invalid.errors], [("/expiresAt", "out_of_range")])
stranger = petstore.PetsApi(petstore.ApiClient(petstore.Configuration(host=url, access_token="nobody")))
refused(UnauthorizedException, "invalid_api_key", stranger.list_pets)
step("an API key of the past, and a wrong key: both with a typed error")

message = messages.queue_message(petstore.MessageInput(message="Xochi sends her regards"))
same((message.status, messages.get_message(message.id)), ("queued", message))
same(accounts.get_account().api_key.created_at.tzinfo, timezone.utc)
step(f"message {message.id} {message.status}")

sandboxes = petstore.SandboxesApi(client)
sandbox = sandboxes.create_sandbox(petstore.SandboxInput(name="story", expiresAt=datetime.now(timezone.utc) + timedelta(minutes=10)))
inside = petstore.ApiClient(petstore.Configuration(host=url, access_token=sandbox.api_key.secret))
rex = petstore.InventoryApi(inside)
webhooks = petstore.WebhooksApi(inside)
webhook = webhooks.create_webhook(petstore.WebhookInput(url="https://example.com/", types=[petstore.WebhookType.ALL]))
placed = petstore.StoreApi(inside).place_order(petstore.OrderInput(petId=1, quantity=2))
events = petstore.EventsApi(inside).list_events(type=[petstore.EventType.ORDER_DOT_PLACED])
same([event.data.order for event in events], [placed])
delivery = webhooks.test_webhook(webhook.id)
same(delivery.type, "webhook.test")
assert delivery.id in [one.id for one in webhooks.list_webhook_deliveries(webhook.id)]
step(f"webhook {webhook.id}: a test among its deliveries")
same(rex.get_inventory_item(1).quantity, 98)
petstore.SandboxesApi(inside).reset_sandbox("current")
same(rex.get_inventory_item(1).quantity, 100)
sandboxes.delete_sandbox(sandbox.id)
refused(UnauthorizedException, "invalid_api_key", petstore.PetsApi(inside).list_pets)
step(f"sandbox {sandbox.id}: created, used, reset and deleted")

# A later version may add fields to a response.
later = petstore.Pet.from_json('{"id": 1, "name": "Rex", "categoryId": 2, "status": "sold", "colour": "red"}')
same((later.name, later.additional_properties), ("Rex", {"colour": "red"}))
step("a field that this client does not know: accepted")
