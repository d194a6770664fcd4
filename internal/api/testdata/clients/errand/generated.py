"""An errand in the shop with a Python client that openapi-generator generates. It goes on after an error."""

import os
import re
import uuid
from urllib.parse import parse_qs, urlsplit

import petstore_client as petstore
import urllib3.exceptions

client = petstore.ApiClient(
    petstore.Configuration(host=os.environ["PETSTORE_URL"], access_token=os.environ["PETSTORE_API_KEY"])
)
pets, store = petstore.PetsApi(client), petstore.StoreApi(client)
inventory, messages = petstore.InventoryApi(client), petstore.MessagesApi(client)


def attempt(step):
    try:
        step()
    except (petstore.ApiException, urllib3.exceptions.HTTPError) as error:
        print(f"  {type(error).__name__}")


def pages():
    cursor, first = None, True
    while first or cursor:
        page = pets.list_pets_with_http_info(limit=50, cursor=cursor)
        link = re.search(r'<([^>]*)>; rel="next"', page.headers["Link"])
        cursor = parse_qs(urlsplit(link[1]).query)["cursor"][0] if link else None
        first = False


def stock():
    item = inventory.get_inventory_item_with_http_info(1)
    update = petstore.InventoryUpdate(quantity=item.data.quantity + 10)
    inventory.set_inventory(1, update, if_match=item.headers["Etag"])


def message():
    made = messages.queue_message(petstore.MessageInput(message="Hello"), idempotency_key=str(uuid.uuid4()))
    messages.get_message(made.id, prefer="wait=1")


attempt(pages)
attempt(lambda: pets.create_pet(petstore.NewPet(name="Xochi", categoryId=1), idempotency_key=str(uuid.uuid4())))
for quantity in (1, 2, 3):
    attempt(lambda: store.place_order(petstore.OrderInput(petId=1, quantity=quantity), idempotency_key=str(uuid.uuid4())))
attempt(stock)
attempt(message)
