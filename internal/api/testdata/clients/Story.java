import java.net.URI;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.regex.Pattern;
import petstore.ApiClient;
import petstore.ApiException;
import petstore.ApiResponse;
import petstore.api.AccountsApi;
import petstore.api.CategoriesApi;
import petstore.api.EventsApi;
import petstore.api.InventoryApi;
import petstore.api.MessagesApi;
import petstore.api.PetsApi;
import petstore.api.SandboxesApi;
import petstore.api.StoreApi;
import petstore.api.WebhooksApi;
import petstore.model.*;

/**
 * A day in the shop with a Java client (okhttp-gson) that openapi-generator generates from the spec.
 *
 * <p>{@code make clients} generates, compiles and runs it with PETSTORE_URL and PETSTORE_API_KEY.
 * story.go and story.ts are longer versions of the story.
 */
public final class Story {
  private static final String URL = System.getenv("PETSTORE_URL");

  public static void main(String[] arguments) throws Exception {
    ApiClient client = client(System.getenv("PETSTORE_API_KEY"));
    PetsApi pets = new PetsApi(client);
    StoreApi store = new StoreApi(client);
    InventoryApi inventory = new InventoryApi(client);
    MessagesApi messages = new MessagesApi(client);
    AccountsApi accounts = new AccountsApi(client);

    Category category = new CategoriesApi(client).createCategory(
        new NewCategory().name("Axolotls " + UUID.randomUUID()).description("Salamanders that stay young"), null);
    NewPet newPet = new NewPet().name("Xochi").categoryId(category.getId());
    String key = UUID.randomUUID().toString();
    ApiResponse<Pet> created = pets.createPetWithHttpInfo(newPet, key);
    Pet pet = created.getData();
    same(pet.getStatus(), PetStatus.AVAILABLE);
    same(header(created, "Location"), "/pets/" + pet.getId());
    ApiResponse<Pet> again = pets.createPetWithHttpInfo(newPet, key);
    same(again.getData(), pet);
    same(header(again, "Idempotent-Replayed"), "true");
    step("category %d, pet %d, created once by two requests", category.getId(), pet.getId());

    inventory.setInventory(pet.getId(), new InventoryUpdate().quantity(3), null);
    OffsetDateTime shipDate = OffsetDateTime.parse("2030-01-02T03:04:05.6Z");
    OrderInput two = new OrderInput().petId(pet.getId()).quantity(2);
    Order order = store.placeOrder(new OrderInput().petId(pet.getId()).quantity(2).shipDate(shipDate), null);
    same(order.getQuantity(), 2);
    same(order.getShipDate(), shipDate);
    refused(409, "insufficient_stock", () -> store.placeOrder(two, null));
    Order last = store.placeOrder(new OrderInput().petId(pet.getId()), null);
    same(inventory.getInventoryItem(pet.getId(), null, null).getStatus(), PetStatus.PENDING);
    petstore.model.Error soldOut = refused(409, "pet_not_available", () -> store.placeOrder(two, null));
    step("3 units ordered; one more: %d %s", soldOut.getStatus(), soldOut.getCode());

    store.cancelOrder(last.getId(), null);
    same(inventory.getInventoryItem(pet.getId(), null, null).getQuantity(), 1L);
    same(store.updateOrder(order.getId(), new OrderPatch().complete(true), null).getComplete(), true);
    refused(409, "order_complete", () -> store.cancelOrder(order.getId(), null));
    step("order %d cancelled, order %d complete", last.getId(), order.getId());

    for (String name : List.of("Atl", "Metztli")) {
      pets.createPet(new NewPet().name(name).categoryId(category.getId()).status(PetStatus.PENDING), null);
    }
    List<String> names = new ArrayList<>();
    int pages = 0;
    String cursor = null;
    do {
      ApiResponse<List<Pet>> page =
          pets.listPetsWithHttpInfo(null, category.getId(), null, null, "name", 2, cursor, null);
      page.getData().forEach(one -> names.add(one.getName()));
      cursor = nextCursor(header(page, "Link"));
      pages++;
    } while (cursor != null);
    same(names, List.of("Atl", "Metztli", "Xochi"));
    same(pages, 2);
    step("%d pets on %d pages", names.size(), pages);

    ApiKeyInput past = new ApiKeyInput().name("old").scope(Scope.READ).expiresAt(OffsetDateTime.parse("2020-01-01T00:00:00Z"));
    petstore.model.Error invalid = refused(400, "validation_failed", () -> accounts.createAPIKey(past));
    same(invalid.getErrors().get(0).getPointer() + " " + invalid.getErrors().get(0).getCode(), "/expiresAt out_of_range");
    PetsApi stranger = new PetsApi(client("nobody"));
    refused(401, "invalid_api_key", () -> stranger.listPets(null, null, null, null, null, null, null, null));
    step("an API key of the past, and a wrong key: both with a typed error");

    Message message = messages.queueMessage(new MessageInput().message("Xochi sends her regards"), null);
    same(message.getStatus(), "queued");
    same(messages.getMessage(message.getId(), null, null), message);
    same(accounts.getAccount(null).getApiKey().getScope(), Scope.ADMIN);
    step("message %s %s", message.getId(), message.getStatus());

    SandboxesApi sandboxes = new SandboxesApi(client);
    SandboxWithKey sandbox = sandboxes.createSandbox(new SandboxInput().name("story").expiresAt(OffsetDateTime.now().plusMinutes(10)));
    ApiClient inside = client(sandbox.getApiKey().getSecret());
    InventoryApi rex = new InventoryApi(inside);
    WebhooksApi webhooks = new WebhooksApi(inside);
    WebhookInput all = new WebhookInput().url("https://example.com/").addTypesItem(WebhookType.ALL);
    WebhookWithSecret webhook = webhooks.createWebhook(all);
    Order placed = new StoreApi(inside).placeOrder(new OrderInput().petId(1L).quantity(2), null);
    List<Event> events = new EventsApi(inside).listEvents(null, List.of(EventType.ORDER_PLACED), null, null, null);
    same(events.stream().map(event -> event.getData().getOrder()).toList(), List.of(placed));
    WebhookDelivery delivery = webhooks.testWebhook(webhook.getId());
    same(delivery.getType(), "webhook.test");
    List<WebhookDelivery> deliveries = webhooks.listWebhookDeliveries(webhook.getId(), null, null, null, null);
    same(deliveries.stream().anyMatch(one -> one.getId().equals(delivery.getId())), true);
    step("webhook %s: a test among its deliveries", webhook.getId());
    same(rex.getInventoryItem(1L, null, null).getQuantity(), 98L);
    new SandboxesApi(inside).resetSandbox("current");
    same(rex.getInventoryItem(1L, null, null).getQuantity(), 100L);
    sandboxes.deleteSandbox(sandbox.getId());
    refused(401, "invalid_api_key", () -> new PetsApi(inside).listPets(null, null, null, null, null, null, null, null));
    step("sandbox %s: created, used, reset and deleted", sandbox.getId());

    // A later version may add fields to a response.
    Pet later = Pet.fromJson("{\"id\": 1, \"name\": \"Rex\", \"categoryId\": 2, \"status\": \"sold\", \"colour\": \"red\"}");
    same(later.getAdditionalProperty("colour"), "red");
    step("a field that this client does not know: accepted");
  }

  private static ApiClient client(String key) {
    ApiClient client = new ApiClient();
    client.setBasePath(URL);
    client.setBearerToken(key);
    return client;
  }

  /** A call of the client. */
  private interface Call {
    void run() throws ApiException;
  }

  /** Runs a call that must fail with this status and code, and returns the typed error. */
  private static petstore.model.Error refused(int status, String code, Call call) throws Exception {
    try {
      call.run();
    } catch (ApiException failure) {
      petstore.model.Error error = petstore.model.Error.fromJson(failure.getResponseBody());
      same(failure.getCode() + " " + error.getStatus() + " " + error.getCode(), status + " " + status + " " + code);
      return error;
    }
    throw new AssertionError("a call succeeded where " + code + " was due");
  }

  private static String header(ApiResponse<?> response, String name) {
    return response.getHeaders().get(name.toLowerCase()).get(0);
  }

  /** Returns the cursor of the link with rel="next", or null. */
  private static String nextCursor(String link) {
    var next = Pattern.compile("<([^>]*)>; rel=\"next\"").matcher(link);
    if (!next.find()) {
      return null;
    }
    var cursor = Pattern.compile("(?:^|&)cursor=([^&]+)").matcher(URI.create(URL).resolve(next.group(1)).getQuery());
    return cursor.find() ? cursor.group(1) : null;
  }

  private static void step(String format, Object... arguments) {
    System.out.printf("  " + format + "%n", arguments);
  }

  private static void same(Object got, Object want) {
    if (!Objects.equals(got, want)) {
      throw new AssertionError("got " + got + ", want " + want);
    }
  }

  private Story() {}
}
