// How the page talks to the server: requests with the token, answers that arrive in pieces.

const token = new URLSearchParams(location.search).get("token") ?? "";
const client = crypto.getRandomValues(new Uint32Array(3)).reduce((text, number) => text + number.toString(36), "w");
let count = 0;

/** The server does not answer at all. */
export class Gone extends Error {}

/** The server answers with a refusal: one sentence, and where it applies. */
export class Refused extends Error {
  constructor({ message, field = null, position = null }) {
    super(message);
    Object.assign(this, { field, position });
  }
}

async function request(path, body, signal) {
  const headers = { "X-Twolayer-Token": token };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Gone("The server does not answer. Is `twolayer explore` still running? The page tries again by itself.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  const fallback = `The server refused this with the status ${response.status}.`;
  throw new Refused({ ...answer, message: answer.message ?? fallback });
}

export const form = async () => (await request("api/form")).json();

/**
 * Ask for one piece of work and call `on(name, data)` for every event. Returns the data of the last one, `result`.
 * Ending `signal` cancels the work on the server.
 */
export async function work(kind, spec, options = {}, { on = () => {}, signal } = {}) {
  const response = await request("api/work", { kind, id: `${count += 1}`, client, spec, options }, signal);
  let result = null;
  try {
    for await (const [name, data] of events(response.body)) {
      if (signal?.aborted) throw new DOMException("cancelled", "AbortError");
      if (name === "refused" || name === "failed") throw new Refused(data);
      if (name === "cancelled") throw new DOMException("cancelled", "AbortError");
      if (name === "result") result = data;
      on(name, data);
    }
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Gone("The connection to the server was lost. The page tries again by itself.");
  }
  if (result === null) throw new Gone("The connection to the server was lost. The page tries again by itself.");
  return result;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const of = (key) => lines.filter((line) => line.startsWith(key)).map((line) => line.slice(key.length).replace(/^ /, ""));
      const data = of("data:").join("\n");
      if (data) yield [of("event:")[0] ?? "message", JSON.parse(data)];
    }
  }
}

/** Fetch a file and hand it to the browser. */
export async function download(format, spec, options, signal) {
  const response = await request("api/download", { format, client, spec, options }, signal);
  const stated = /filename="?([^";]+)"?/.exec(response.headers.get("Content-Disposition") ?? "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = stated?.[1] ?? `twolayer.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  return link.download;
}
