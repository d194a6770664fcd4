# An errand in the shop with a Ruby client that openapi-generator generates. It goes on after an error.

require "securerandom"
require "uri"
require "openapi_client"

Petstore = OpenapiClient

config = Petstore::Configuration.new
url = URI(ENV.fetch("PETSTORE_URL"))
config.scheme = url.scheme
config.host = "#{url.host}:#{url.port}"
config.server_index = nil # the spec has only a relative server
config.params_encoding = :multi
config.access_token = ENV.fetch("PETSTORE_API_KEY")
shop = Petstore::ApiClient.new(config)
pets, store = Petstore::PetsApi.new(shop), Petstore::StoreApi.new(shop)
inventory, messages = Petstore::InventoryApi.new(shop), Petstore::MessagesApi.new(shop)

def attempt
  yield
rescue Petstore::ApiError => e
  puts "  #{e.code}"
end

def once = { idempotency_key: SecureRandom.uuid }

attempt do
  options = { limit: 50 }
  while options
    _, _, headers = pets.list_pets_with_http_info(options)
    link = headers["Link"][/<([^>]*)>; rel="next"/, 1]
    options = link && { limit: 50, cursor: URI.decode_www_form(URI(link).query).to_h["cursor"] }
  end
end
attempt { pets.create_pet(Petstore::NewPet.new(name: "Xochi", category_id: 1), once) }
[1, 2, 3].each { |quantity| attempt { store.place_order(Petstore::OrderInput.new(pet_id: 1, quantity: quantity), once) } }
attempt do
  item, _, headers = inventory.get_inventory_item_with_http_info(1)
  inventory.set_inventory(1, Petstore::InventoryUpdate.new(quantity: item.quantity + 10), if_match: headers["ETag"])
end
attempt do
  made = messages.queue_message(Petstore::MessageInput.new(message: "Hello"), once)
  messages.get_message(made.id, prefer: "wait=1")
end
