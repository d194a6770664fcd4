// Writes a recorded request as a command that sends it again.
import { curlHeader, quoted } from "./request.js";

const left = /^(host|authorization|content-length|connection|accept-encoding|user-agent|transfer-encoding|x-forwarded-.*|x-request-id|traceparent|tracestate)$/i;

const mostOfBody = 16_384; // bytes of a body in the record: MaxBody of the package exchange

/** Reports whether the record has only a part of a body, or nothing. A redacted body is shorter, but whole. */
export const isCut = ({ body, bodySize }) => bodySize > (body === "" ? 0 : mostOfBody);

/**
 * Returns a curl command for a POSIX shell. It quotes all parts of the request, which may have any
 * characters. The key comes from the environment.
 */
export function curl({ method, path, query, request }) {
  const { headers, body, bodyEncoding, bodySize } = request;
  const target = (query === undefined ? path : `${path}?${query}`).replaceAll(/[^\w.~%/?&=+:;,@-]/gu, encodeURIComponent);
  const bytes = bodyEncoding === "base64" ? atob(body) : String.fromCharCode(...new TextEncoder().encode(body));
  const binary = bodyEncoding === "base64" || bytes.includes("\0"); // which a shell drops
  // With -X HEAD, curl waits for the body that the response announces.
  const by = method === "HEAD" && body === "" ? "--head" : `-X ${/^[A-Z]+$/.test(method) ? method : quoted(method)}`;
  const parts = [`curl ${by} "$PETSTORE_URL"${quoted(target)}`, '-H "Authorization: Bearer $PETSTORE_API_KEY"'];
  if (/\/(\.|%2e){1,2}(\/|$)/i.test(path)) parts.push("--path-as-is"); // otherwise curl removes these segments
  for (const { name, value } of headers) if (!left.test(name)) parts.push(curlHeader(name, value));
  if (body !== "" && !headers.some(({ name }) => /^content-type$/i.test(name))) parts.push("-H Content-Type:"); // otherwise curl adds one
  if (body !== "") parts.push(binary ? "--data-binary @-" : `--data-raw ${quoted(body)}`);
  const notes = [
    isCut(request) && `# The record has only ${bytes.length} of the ${bodySize} bytes of the body.`,
    JSON.stringify([method, path, query, headers.filter(({ name }) => !left.test(name)), body]).includes("[redacted]") && "# Replace [redacted].",
  ].filter(Boolean);
  return [...notes, `${binary ? `echo ${btoa(bytes)} | base64 -d | ` : ""}${parts.join(" \\\n  ")}`].join("\n");
}
