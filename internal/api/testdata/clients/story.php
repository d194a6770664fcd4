<?php
// A day in the shop with a PHP client that openapi-generator generates from the spec.
// `make clients` generates and runs it with PETSTORE_URL and PETSTORE_API_KEY.
// story.go and story.ts are longer versions of the story.

declare(strict_types=1);

use GuzzleHttp\Client;
use OpenAPI\Client\Api\CategoriesApi;
use OpenAPI\Client\Api\EventsApi;
use OpenAPI\Client\Api\InventoryApi;
use OpenAPI\Client\Api\PetsApi;
use OpenAPI\Client\Api\SandboxesApi;
use OpenAPI\Client\Api\StoreApi;
use OpenAPI\Client\Api\WebhooksApi;
use OpenAPI\Client\ApiException;
use OpenAPI\Client\Configuration;
use OpenAPI\Client\Model\EventType;
use OpenAPI\Client\Model\InventoryUpdate;
use OpenAPI\Client\Model\NewCategory;
use OpenAPI\Client\Model\NewPet;
use OpenAPI\Client\Model\OrderInput;
use OpenAPI\Client\Model\PetStatus;
use OpenAPI\Client\Model\SandboxInput;
use OpenAPI\Client\Model\WebhookInput;
use OpenAPI\Client\Model\WebhookType;

// Guzzle comes from Composer, or from the packages of a distribution as here.
require 'GuzzleHttp/autoload.php';
spl_autoload_register(function (string $class): void {
    $file = getenv('PETSTORE_PHP_CLIENT') . '/lib/' . str_replace('\\', '/', substr($class, strlen('OpenAPI\\Client\\'))) . '.php';
    if (str_starts_with($class, 'OpenAPI\\Client\\')) {
        require $file;
    }
});
set_error_handler(fn (int $severity, string $message) => throw new ErrorException($message, 0, $severity));

function api(string $class, string $key): object
{
    $config = (new Configuration())->setHost(getenv('PETSTORE_URL'))->setAccessToken($key);
    return new $class(new Client(), $config);
}

function step(string $text): void
{
    echo "  $text\n";
}

function same(mixed $got, mixed $want): void
{
    if ($got != $want) {
        throw new Exception('got ' . var_export($got, true) . ', want ' . var_export($want, true));
    }
}

// refused makes a call that must fail with this status and error code.
function refused(int $status, string $code, callable $call): void
{
    try {
        $call();
    } catch (ApiException $e) {
        same([$e->getCode(), $e->getResponseObject()->getCode()], [$status, $code]);
        return;
    }
    throw new Exception("the request succeeded where $code was due");
}

$key = getenv('PETSTORE_API_KEY');
$pets = api(PetsApi::class, $key);
$store = api(StoreApi::class, $key);
$category = api(CategoriesApi::class, $key)->createCategory(new NewCategory(['name' => 'Axolotls ' . bin2hex(random_bytes(8))]));
$once = bin2hex(random_bytes(16));
$newPet = new NewPet(['name' => 'Étoile', 'category_id' => $category->getId()]);
same($newPet->listInvalidProperties(), []);
$pet = $pets->createPet($newPet, $once);
[$again, , $headers] = $pets->createPetWithHttpInfo($newPet, $once);
same([$again, $headers['Idempotent-Replayed']], [$pet, ['true']]);
step("category {$category->getId()}, pet {$pet->getId()}, created once by two requests");

$found = $pets->listPets(status: [PetStatus::AVAILABLE], category_id: $category->getId(), sort: '-name');
same($found, [$pet]);
step(count($found) . ' pet in the list');

api(InventoryApi::class, $key)->setInventory($pet->getId(), new InventoryUpdate(['quantity' => 1]));
$order = $store->placeOrder(new OrderInput(['pet_id' => $pet->getId(), 'ship_date' => new DateTime('2030-01-02T00:00:00Z')]));
same([$order->getQuantity(), $order->getShipDate(), $order->getComplete()], [1, new DateTime('2030-01-02T00:00:00Z'), false]);
refused(409, 'pet_not_available', fn () => $store->placeOrder(new OrderInput(['pet_id' => $pet->getId()])));
refused(401, 'invalid_api_key', fn () => api(PetsApi::class, 'nobody')->listPets());
step("order {$order->getId()}; one more and a wrong key are refused");

$sandboxes = api(SandboxesApi::class, $key);
$sandbox = $sandboxes->createSandbox(new SandboxInput(['name' => 'story', 'expires_at' => new DateTime('+10 minutes')]));
$inside = $sandbox->getApiKey()->getSecret();
$webhooks = api(WebhooksApi::class, $inside);
$webhook = $webhooks->createWebhook(new WebhookInput(['url' => 'https://example.com/', 'types' => [WebhookType::ALL]]));
$order = api(StoreApi::class, $inside)->placeOrder(new OrderInput(['pet_id' => 1]));
$events = api(EventsApi::class, $inside)->listEvents(type: [EventType::ORDER_PLACED]);
same(array_map(fn ($event) => $event->getData()->getOrder(), $events), [$order]);
step("event {$events[0]->getId()}");
$delivery = $webhooks->testWebhook($webhook->getId());
same($delivery->getType(), 'webhook.test');
same(in_array($delivery->getId(), array_map(fn ($one) => $one->getId(), $webhooks->listWebhookDeliveries($webhook->getId())), true), true);
step("webhook {$webhook->getId()}, with a test in its deliveries");
$sandboxes->deleteSandbox($sandbox->getId());
