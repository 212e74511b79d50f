// The service's HTTP API: one function a route. Errors are Problems; a wish for a token is answered once, then retried.

import { emit } from "./store.js";

/** What went wrong, in the service's own words (RFC 9457); status 0 when it could not be reached. */
export class Problem extends Error {
  constructor(status, title, detail, fields = {}) {
    super(detail || title);
    Object.assign(this, { name: "Problem", status, title, detail, fields });
  }
}

let askForToken = async () => false;
let asking = null;

/** Say who asks people for the token: a function that resolves to true once there is a session. */
export function onTokenWanted(ask) {
  askForToken = ask;
}

/** A path of the API as an address; relative to the page, so that it also works below a proxy's prefix. */
export function address(path, query = {}) {
  const url = new URL(`v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

export const thumbnailUrl = (index) => address(`images/${index}/thumbnail`).pathname;
export const imageUrl = (index) => address(`images/${index}`).pathname;

async function call(method, path, { query, json, body, headers = {}, signal, retry = true } = {}) {
  const request = {
    method,
    headers: { Accept: "application/json", ...headers },
    body,
    signal,
    credentials: "same-origin",
  };
  if (json !== undefined) {
    request.body = JSON.stringify(json);
    request.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(address(path, query), request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    emit("unreachable");
    throw new Problem(0, "The service can't be reached", "It may have been stopped, or the network is gone.");
  }
  emit("reachable");
  if (response.ok) return response.status === 204 ? null : response.json();
  if (response.status === 401 && retry) {
    asking ??= askForToken().finally(() => (asking = null));
    if (await asking) return call(method, path, { query, json, body, headers, signal, retry: false });
  }
  throw await problemOf(response);
}

async function problemOf(response) {
  const fields = await response.json().catch(() => ({}));
  const title = fields.title || `${response.status} ${response.statusText}`.trim();
  return new Problem(response.status, title, fields.detail || title, fields);
}

const get = (path, query, signal) => call("GET", path, { query, signal });
const post = (path, json) => call("POST", path, { json });

export const listCategories = (query, signal) => get("categories", query, signal);
export const getCategory = (id) => get(`categories/${id}`);
export const listMembers = (id, query, signal) => get(`categories/${id}/images`, query, signal);
export const patchCategory = (id, changes) => call("PATCH", `categories/${id}`, { json: changes });
export const mergeCategories = (categories, into) => post("categories:merge", { categories, into });
export const splitCategory = (id, images, name) => post(`categories/${id}:split`, name ? { images, name } : { images });
export const moveImages = (images, category) => post("images:move", { images, category });
export const confirmImages = (images) => post("images:confirm", { images });
export const rejectImages = (images) => post("images:reject", { images });
export const undoEvent = (seq) => post("undo", seq === undefined ? {} : { event: seq });
export const getHistory = (query) => get("history", query);
export const getDecision = (index) => get(`images/${index}/decision`);
export const getSuggestions = (limit) => get("suggestions", { limit });
export const refuseSuggestion = (first, second) => post("suggestions:refuse", { first, second });
export const getWhatIf = () => get("what-if");
export const getMap = (limit) => get("map", { limit });
export const getStatus = () => get("status");
export const openSession = (token) => call("POST", "session", { json: { token }, retry: false });
export const closeSession = () => call("DELETE", "session", { retry: false });

/** Ask for a decision about an image file. Learning carries a key: sent twice, it counts once. */
export function decide(file, learn, signal) {
  const headers = { "Content-Type": file.type || "application/octet-stream" };
  if (learn) headers["Idempotency-Key"] = randomKey();
  const query = { learn: String(learn), source: file.name || "pasted image" };
  return call("POST", "decide", { query, body: file, headers, signal });
}

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is missing on plain HTTP
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
