// What the page knows: categories by id, the status, and a small bus on which the parts tell one another of changes.

const bus = new EventTarget();
const known = new Map();
let status = null;

/** Tell all who listen: "category", "arrival", "ledger", "edited", "status", "live", "reachable", "unreachable". */
export function emit(name, detail) {
  bus.dispatchEvent(new CustomEvent(name, { detail }));
}

export function on(name, listener) {
  bus.addEventListener(name, (event) => listener(event.detail));
}

/** How the stream is, as it was last heard of, or null. */
export const statusNow = () => status;

on("status", (now) => (status = { ...status, ...now }));

/** The category as it was last heard of, or undefined. */
export const categoryOf = (id) => known.get(id);

/** Remember a category, and tell if it has changed. */
export function remember(category) {
  const before = known.get(category.id);
  known.set(category.id, category);
  if (before && JSON.stringify(before) !== JSON.stringify(category)) emit("category", category);
  return category;
}

/** Whether it has a name that says something: a person's, or that of a known class. */
export const hasName = (category) => category.named || category.kind === "known";

/** A name for an id: the one last heard of, else "#7". */
export const nameOf = (id) => known.get(id)?.name ?? `#${id}`;

/** Count an answer in a category that is known here. Says whether to ask for it: it is new, or its state may change. */
export function countDecision(decision) {
  const before = known.get(decision.resolved);
  if (!before) return decision.verdict === "new";
  const verdicts = { ...before.verdicts, [decision.verdict]: (before.verdicts[decision.verdict] ?? 0) + 1 };
  const exemplars = before.exemplars.length < 4 ? [...before.exemplars, decision.index] : before.exemplars;
  const count = before.count + 1;
  const now = Date.now() / 1000;
  remember({ ...before, verdicts, exemplars, count, first_seen: before.first_seen ?? now, last_seen: now });
  return before.state === "tentative" || before.state === "retired";
}

/** Ids of the categories that an event of the ledger names; images that it moves may come from others as well. */
export function touchedBy(event) {
  const { data = {}, category } = event;
  const ids = new Set([...(data.categories ?? []), ...(data.pair ?? [])]);
  for (const id of [category, data.into]) if (Number.isInteger(id) && id >= 0) ids.add(id);
  return [...ids];
}
