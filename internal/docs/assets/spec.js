// Reads the spec (OpenAPI 3.0) and decides what the page shows, in which order and
// with which ids.
//
// `Pets` and `pets` are two tags. Their ids differ by more than case, because people
// and programs change the case of links.

const methods = ["get", "head", "options", "post", "put", "patch", "delete", "trace"];

/**
 * Parses the document and drops everything with x-internal. Integers that JavaScript
 * would round stay text, if the browser supports that.
 */
export function parse(text) {
  return JSON.parse(text, (key, value, written) => {
    if (Number.isInteger(value) && !Number.isSafeInteger(value)) return written?.source ?? value;
    if (value?.["x-internal"] === true) return undefined;
    return Array.isArray(value) ? value.filter((item) => item !== undefined) : value;
  });
}

export class Spec {
  constructor(document) {
    this.document = document;
    this.operations = Object.entries(document.paths).flatMap(([path, item]) =>
      Object.keys(item)
        .filter((method) => methods.includes(method))
        .map((method) => this.#operation(method, path, item)),
    );
    this.tags = this.#tags();
    this.schemas = Object.entries(document.components?.schemas ?? {}).map(([name, schema]) => ({
      id: `model-${name}`,
      name,
      schema,
    }));
  }

  /** Follows a $ref, if the node is one. */
  resolve(node) {
    while (node?.$ref) {
      node = node.$ref
        .slice("#/".length)
        .split("/")
        .reduce((at, part) => at?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], this.document);
    }
    return node;
  }

  /** Returns the id for the fragment of a link: an id, a $ref, or a deep link of Swagger UI. */
  idOf(fragment) {
    const [, name] = /^#\/components\/schemas\/(.+)$/.exec(fragment) ?? [];
    if (name) return `model-${name}`;
    const [, operation] = /^#\/.+\/(.+)$/.exec(fragment) ?? [];
    return operation ?? fragment.slice(1);
  }

  /** Returns the operation of a method and path. A query is ignored. */
  find(method, path) {
    const [wanted] = path.split("?");
    return this.operations.find((operation) => operation.method === method && operation.path === wanted);
  }

  // Builds the tree of tags from x-parent. Each tag has its children and operations.
  #tags() {
    const tags = (this.document.tags ?? []).map((tag) => ({
      name: tag.name,
      parent: tag["x-parent"],
      description: tag.description,
      operations: this.operations.filter((operation) => operation.tag === tag.name),
    }));
    for (const tag of tags) {
      tag.children = tags.filter((child) => child.parent === tag.name);
      tag.id = `${tag.children.length > 0 ? "group" : "tag"}-${tag.name}`;
    }
    return tags.filter((tag) => tag.parent === undefined);
  }

  #operation(method, path, item) {
    const operation = item[method];
    const parameters = [...(item.parameters ?? []), ...(operation.parameters ?? [])].map((p) => this.resolve(p));
    return {
      id: operation.operationId,
      method,
      path,
      tag: operation.tags?.[0],
      summary: operation.summary ?? `${method.toUpperCase()} ${path}`,
      description: operation.description,
      deprecated: operation.deprecated === true,
      sunset: operation["x-deprecated-sunset"],
      successor: operation["x-deprecated-successor"],
      stability: operation["x-stability"],
      sendable: operation["x-hideTryItPanel"] !== true,
      needsKey: (operation.security ?? this.document.security ?? []).length > 0,
      parameters,
      body: this.resolve(operation.requestBody),
      responses: Object.entries(operation.responses).map(([status, response]) => this.#response(status, response)),
      samples: operation["x-codeSamples"] ?? [],
    };
  }

  #response(status, node) {
    const response = this.resolve(node);
    const content = Object.entries(response.content ?? {}).map(([type, media]) => ({
      type,
      schema: media.schema,
      examples: this.examples(media),
    }));
    const codes = content.flatMap(({ examples }) => examples.map(({ value }) => value?.code)).filter(Boolean);
    return {
      status,
      description: response.description,
      headers: Object.entries(response.headers ?? {}).map(([name, header]) => ({ name, ...this.resolve(header) })),
      content,
      codes: Number(status) >= 400 ? [...new Set(codes)] : [],
    };
  }

  /** Returns the examples of a media type with their names. */
  examples(media) {
    if (media.examples) {
      return Object.entries(media.examples).map(([name, example]) => ({ name, ...this.resolve(example) }));
    }
    return media.example === undefined ? [] : [{ name: "Example", value: media.example }];
  }
}

/** Formats "2027-12-31" as "31 December 2027". */
export function longDate(date) {
  return new Date(`${date}T00:00:00Z`).toLocaleDateString("en-GB", {
    day: "numeric",
    month: "long",
    year: "numeric",
    timeZone: "UTC",
  });
}
