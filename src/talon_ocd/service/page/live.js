// Listens to the service's events (SSE) and turns them into changes of the store. Reconnects by itself.
// A page in the background lets go of its connection: browsers allow only a few per service over all tabs.

import { address, getCategory, getStatus } from "./api.js";
import { isMine } from "./edits.js";
import { countDecision, emit, on, remember, touchedBy } from "./store.js";

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30000;
const GATHER = 300; // milliseconds in which new ids are gathered, so that a busy stream costs few requests
const MOST_FETCHED = 12;

let source = null;
let wait = FIRST_WAIT;
let timer = 0;
let wasLive = false;
const wanted = new Set();
let gathering = 0;

function tell(state) {
  emit("live", state);
}

function connect() {
  clearTimeout(timer);
  source?.close();
  tell("connecting");
  source = new EventSource(address("events"));
  source.addEventListener("open", () => {
    wait = FIRST_WAIT;
    tell("live");
    emit("reachable");
    if (wasLive) emit("missed"); // some events may have gone by
    wasLive = true;
  });
  source.addEventListener("error", () => {
    tell("connecting");
    if (source.readyState === EventSource.CLOSED) again(); // refused; a lost line is taken up by the browser itself
    else getStatus().catch(() => {});
  });
  source.addEventListener("decision", (message) => heard(JSON.parse(message.data)));
  source.addEventListener("ledger", (message) => written(JSON.parse(message.data)));
  source.addEventListener("resync", () => emit("missed")); // away for too long to be told everything
  source.addEventListener("status", (message) => emit("status", JSON.parse(message.data)));
}

function again() {
  source?.close();
  tell("lost");
  timer = setTimeout(async () => {
    wait = Math.min(wait * 2, LONGEST_WAIT);
    try {
      await getStatus(); // shows the banner, or asks for the token
      connect();
    } catch {
      again();
    }
  }, wait);
}

/** An answer of the stream: count it, or ask for the category. Others come when they are shown. */
function heard(decision) {
  emit("decision", decision);
  if (countDecision(decision)) fetchSoon(decision.resolved);
}

/** A line of the ledger: whatever it is about is asked for again, unless this page wrote it. */
async function written(event) {
  if (await isMine(event)) return;
  emit("ledger", event);
  touchedBy(event).forEach(fetchSoon);
}

function fetchSoon(id) {
  wanted.add(id);
  gathering ||= setTimeout(fetchWanted, GATHER);
}

async function fetchWanted() {
  const ids = [...wanted].slice(-MOST_FETCHED);
  const left = wanted.size - ids.length;
  wanted.clear();
  gathering = 0;
  const found = await Promise.all(ids.map((id) => getCategory(id).catch(() => null)));
  for (const category of found) if (category) emit("arrival", remember(category));
  if (left > 0) emit("arrivals-beyond", left);
}

function watchVisibility() {
  if (document.hidden) {
    clearTimeout(timer);
    source?.close();
    tell("connecting");
  } else {
    connect();
  }
}

export function startLive() {
  connect();
  document.addEventListener("visibilitychange", watchVisibility);
  on("signed-in", connect);
  on("retry", () => {
    wait = FIRST_WAIT;
    connect();
  });
}
