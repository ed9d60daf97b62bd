// The server, as the console asks it. The key lives in this tab's session and nowhere else.

const KEY = "pagefall.key";
let key = "";
try {
  key = sessionStorage.getItem(KEY) ?? "";
} catch {
  // A browser that keeps nothing: the key lasts until the page is loaded again.
}

/** The server answered, and refused. `status` is HTTP's, the message the server's own. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get needsKey() {
    return this.status === 401 || this.status === 403;
  }
}

/** Nobody answered. */
export class Unreachable extends Error {}

export function hasKey() {
  return key !== "";
}

export function setKey(text) {
  key = text;
  try {
    if (text === "") sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, text);
  } catch {
    // As above.
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Refused(response.status, body?.error?.message ?? `The server answered with status ${response.status}.`);
}

/** Rejects with `Refused`, with `Unreachable`, or with the signal's own reason. */
async function ask(path, options) {
  const headers = { ...options.headers };
  // A header carries bytes: a key beyond Latin-1 goes as its UTF-8.
  if (key !== "") headers.Authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable("The server does not answer.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function getJson(path, { signal } = {}) {
  const response = await ask(path, { headers: { Accept: "application/json" }, signal });
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable("The server broke off its answer.");
  }
}

/** The events of a streamed answer, each one parsed. Ends at `[DONE]`; an error among them is a `Refused`. */
export async function* stream(path, body, { signal } = {}) {
  const response = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        if (signal?.aborted) throw error;
        throw new Unreachable("The connection was lost.");
      });
      if (done) throw new Unreachable("The server broke off its answer.");
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.startsWith("data: ") ? event.slice(6) : "";
        if (data === "[DONE]") return;
        if (data === "") continue;
        const parsed = JSON.parse(data);
        if (parsed.error) throw new Refused(500, parsed.error.message);
        yield parsed;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
