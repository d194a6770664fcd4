# A day in the shop with a Ruby client that openapi-generator generates from the spec.
# `make clients` generates and runs it with PETSTORE_URL and PETSTORE_API_KEY.
# story.go and story.ts are longer versions of the story.

require "securerandom"
require "time"
require "uri"
require "openapi_client"

Petstore = OpenapiClient

def client(key)
  config = Petstore::Configuration.new
  url = URI(ENV.fetch("PETSTORE_URL"))
  config.scheme = url.scheme
  config.host = "#{url.host}:#{url.port}"
  config.server_index = nil # the spec has only a relative server
  config.params_encoding = :multi # without it, Typhoeus sends status[0]=available
  config.access_token = key
  Petstore::ApiClient.new(config)
end

def step(text) = puts("  #{text}")

def same(got, want)
  raise "got #{got.inspect}, want #{want.inspect}" unless got == want
end

# Runs a block that must fail with this status and error code.
def refused(status, code)
  yield
rescue Petstore::ApiError => e
  same([e.code, JSON.parse(e.response_body)["code"]], [status, code])
else
  raise "the request succeeded where #{code} was due"
end

shop = client(ENV.fetch("PETSTORE_API_KEY"))
pets, store = Petstore::PetsApi.new(shop), Petstore::StoreApi.new(shop)
category = Petstore::CategoriesApi.new(shop).create_category(Petstore::NewCategory.new(name: "Axolotls #{SecureRandom.uuid}"))
once = { idempotency_key: SecureRandom.uuid }
new_pet = Petstore::NewPet.new(name: "Étoile", category_id: category.id)
pet = pets.create_pet(new_pet, once)
again, _, headers = pets.create_pet_with_http_info(new_pet, once)
same([again, headers["Idempotent-Replayed"]], [pet, "true"])
step("category #{category.id}, pet #{pet.id}, created once by two requests")

found = pets.list_pets(category_id: category.id, status: [Petstore::PetStatus::AVAILABLE], sort: "-name")
same(found, [pet])
step("#{found.length} pet in the list")

Petstore::InventoryApi.new(shop).set_inventory(pet.id, Petstore::InventoryUpdate.new(quantity: 1))
order = store.place_order(Petstore::OrderInput.new(pet_id: pet.id, ship_date: Time.utc(2030, 1, 2).iso8601))
same([order.quantity, order.ship_date, order.complete], [1, Time.utc(2030, 1, 2), false])
refused(409, "pet_not_available") { store.place_order(Petstore::OrderInput.new(pet_id: pet.id)) }
refused(401, "invalid_api_key") { Petstore::PetsApi.new(client("nobody")).list_pets }
step("order #{order.id}; one more and a wrong key are refused")

sandboxes = Petstore::SandboxesApi.new(shop)
sandbox = sandboxes.create_sandbox(Petstore::SandboxInput.new(name: "story", expires_at: (Time.now + 600).utc.iso8601))
inside = client(sandbox.api_key.secret)
webhooks = Petstore::WebhooksApi.new(inside)
webhook = webhooks.create_webhook(Petstore::WebhookInput.new(url: "https://example.com/", types: [Petstore::WebhookType::ALL]))
order = Petstore::StoreApi.new(inside).place_order(Petstore::OrderInput.new(pet_id: 1))
events = Petstore::EventsApi.new(inside).list_events(type: [Petstore::EventType::ORDER_PLACED])
same(events.map { |event| event.data.order }, [order])
step("event #{events[0].id}")
delivery = webhooks.test_webhook(webhook.id)
same(delivery.type, "webhook.test")
same(webhooks.list_webhook_deliveries(webhook.id).map(&:id).include?(delivery.id), true)
step("webhook #{webhook.id}, with a test in its deliveries")
sandboxes.delete_sandbox(sandbox.id)
