<?php
// An errand in the shop with a PHP client that openapi-generator generates. It goes on after an error.

declare(strict_types=1);

use GuzzleHttp\Client;
use OpenAPI\Client\Api\InventoryApi;
use OpenAPI\Client\Api\MessagesApi;
use OpenAPI\Client\Api\PetsApi;
use OpenAPI\Client\Api\StoreApi;
use OpenAPI\Client\ApiException;
use OpenAPI\Client\Configuration;
use OpenAPI\Client\Model\InventoryUpdate;
use OpenAPI\Client\Model\MessageInput;
use OpenAPI\Client\Model\NewPet;
use OpenAPI\Client\Model\OrderInput;

require 'GuzzleHttp/autoload.php';
spl_autoload_register(function (string $class): void {
    if (str_starts_with($class, 'OpenAPI\\Client\\')) {
        require getenv('PETSTORE_PHP_CLIENT') . '/lib/' . str_replace('\\', '/', substr($class, strlen('OpenAPI\\Client\\'))) . '.php';
    }
});

function api(string $class): object
{
    return new $class(new Client(), (new Configuration())->setHost(getenv('PETSTORE_URL'))->setAccessToken(getenv('PETSTORE_API_KEY')));
}

function attempt(callable $step): void
{
    try {
        $step();
    } catch (ApiException $e) {
        echo '  ' . $e->getCode() . "\n";
    }
}

$once = fn (): string => bin2hex(random_bytes(16));
$pets = api(PetsApi::class);
attempt(function () use ($pets): void {
    for ($cursor = null; $cursor !== false;) {
        [, , $headers] = $pets->listPetsWithHttpInfo(limit: 50, cursor: $cursor);
        $cursor = false;
        if (preg_match('/<([^>]*)>; rel="next"/', implode(', ', $headers['Link']), $link)) {
            parse_str(parse_url($link[1], PHP_URL_QUERY), $query);
            $cursor = $query['cursor'];
        }
    }
});
attempt(fn () => $pets->createPet(new NewPet(['name' => 'Xochi', 'category_id' => 1]), $once()));
foreach ([1, 2, 3] as $quantity) {
    attempt(fn () => api(StoreApi::class)->placeOrder(new OrderInput(['pet_id' => 1, 'quantity' => $quantity]), $once()));
}
attempt(function (): void {
    [$item, , $headers] = api(InventoryApi::class)->getInventoryItemWithHttpInfo(1);
    api(InventoryApi::class)->setInventory(1, new InventoryUpdate(['quantity' => $item->getQuantity() + 10]), if_match: $headers['Etag'][0]);
});
attempt(function () use ($once): void {
    $made = api(MessagesApi::class)->queueMessage(new MessageInput(['message' => 'Hello']), $once());
    api(MessagesApi::class)->getMessage($made->getId(), prefer: 'wait=1');
});
