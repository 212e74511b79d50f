// The categories as a grid of cards: pages as one scrolls, changes in place, newcomers that don't make it jump.

import { getCategory, listCategories } from "./api.js";
import { createCard, skeletons } from "./cards.js";
import { $, fill, h, prefersStill } from "./dom.js";
import { comesBefore, createFilters, filter, fits, isShown } from "./filters.js";
import { handleGrid } from "./grid-actions.js";
import { createNews } from "./news.js";
import { placeAfter, rove } from "./roving.js";
import { addView, currentView } from "./router.js";
import { isSelected, select, selectedIds, showSelection } from "./selection.js";
import { empty, failed } from "./states.js";
import { categoryOf, on, remember, statusNow, touchedBy } from "./store.js";
import { complain } from "./toast.js";
import { hasSession } from "./token.js";
import { createWindow } from "./window.js";

const PAGE = 60;
const MOST_REFRESHED = 200;
const MINUTE = 60000;

const cards = new Map(); // by id, those that are elements now
const fresh = new Set(); // ids that have just arrived
const list = h("ul.cards", { "aria-label": "Categories" });
const sentinel = h("div.sentinel");
const news = createNews(openNews);
const note = h("div");
const view = createWindow(list, make, (id) => cards.delete(id));
let filters;
let roving;
let next = null;
let total = 0;
let loading = null; // the AbortController of the request on its way
let loaded = false;

const query = (limit, cursor) => ({ state: filter.state, q: filter.q, sort: filter.sort, limit, cursor });

async function request(limit, cursor) {
  loading?.abort();
  const mine = (loading = new AbortController());
  try {
    return await listCategories(query(limit, cursor), mine.signal);
  } finally {
    if (loading === mine) loading = null;
  }
}

/** Show the first page anew: another filter, or the first time. */
async function reload() {
  view.set([]);
  news.clear();
  fill(note);
  fill(list, skeletons(12));
  list.setAttribute("aria-busy", "true");
  next = null;
  loaded = false;
  try {
    const page = await request(PAGE);
    fill(list);
    take(page);
    loaded = true;
  } catch (problem) {
    if (problem.name === "AbortError") return;
    fill(list);
    fill(note, failed(problem, reload));
  }
  list.setAttribute("aria-busy", "false");
}

function take(page) {
  const have = new Set(view.ids());
  const further = page.items.filter((category) => isShown(remember(category)) && !have.has(category.id));
  next = page.next;
  show([...view.ids(), ...further.map(({ id }) => id)]);
  setTotal(totalOf(page));
  watchEnd();
}

/** Show these categories, in this order; a card that has the focus keeps it. */
function show(ids) {
  const focused = focusedId();
  view.set(ids);
  roving.reset();
  if (focused !== null && focusedId() === null) cards.get(focused)?.open.focus({ preventScroll: true });
}

function focusedId() {
  const id = list.contains(document.activeElement) && document.activeElement.closest("li.card")?.dataset.id;
  return id ? Number(id) : null;
}

/** How many there are: the API's "all" counts what is merged, hidden or retired as well. */
function totalOf(page) {
  if (filter.state !== "all") return page.total;
  if (page.next === null) return view.ids().length;
  const totals = statusNow()?.totals;
  return totals && !filter.q ? totals.known + totals.discovered : page.total;
}

function make(id) {
  const card = createCard(categoryOf(id));
  cards.set(id, card);
  card.tick.checked = isSelected(id);
  card.element.classList.toggle("fresh", fresh.delete(id));
  return card.element;
}

async function more() {
  if (next === null || loading) return;
  try {
    take(await request(PAGE, next));
  } catch (problem) {
    complain(problem);
  }
}

/** After an edit: bring what is loaded into the order and state that the service has now, keeping the cards. */
async function refresh(edit) {
  if (!loaded) return;
  const loadedIds = view.ids();
  const limit = Math.min(Math.max(loadedIds.length, PAGE), MOST_REFRESHED);
  const whole = loadedIds.length <= limit;
  try {
    const page = await request(limit);
    news.clear();
    const wanted = new Set(page.items.filter((category) => isShown(remember(category))).map(({ id }) => id));
    for (const id of wanted) cards.get(id)?.update(categoryOf(id));
    if (whole) next = page.next;
    drop((id) => whole && !wanted.has(id));
    show([...wanted, ...view.ids().filter((id) => !wanted.has(id))]);
    if (!whole && edit) await recheck([edit.event, edit.undone], wanted);
    setTotal(totalOf(page));
    watchEnd();
  } catch (problem) {
    complain(problem);
  }
}

/** Further down than is refreshed: look only at what the edit was about. */
async function recheck(events, done) {
  const ids = new Set(events.filter(Boolean).flatMap(touchedBy));
  for (const id of [...ids].filter((one) => !done.has(one))) {
    const category = remember(await getCategory(id));
    if (isShown(category)) arrive(category);
    else drop((one) => one === id);
  }
}

/** Take cards away; the focus goes to the neighbour. */
function drop(gone) {
  const lost = view.ids().filter(gone);
  if (!lost.length) return;
  const focused = focusedId();
  const place = view.ids().indexOf(focused);
  select(lost.filter(isSelected), false);
  show(view.ids().filter((id) => !gone(id)));
  const heir = view.ids()[Math.min(place, view.ids().length - 1)];
  if (lost.includes(focused) && heir !== undefined) view.reveal(heir).querySelector("a.open").focus();
}

function setTotal(number) {
  total = Math.max(number, 0);
  filters.setTotal(total);
  const bare = !isFiltered() && view.ids().every((id) => categoryOf(id).count === 0);
  fill(note, ((total === 0 && !news.waiting().length) || bare) && emptiness());
}

/** A category that people or the stream have made or changed. */
function arrive(category) {
  if (!loaded) return;
  if (!view.ids().includes(category.id)) {
    if (fits(category) && belongsHere(category)) welcome(category);
  } else if (isShown(category)) cards.get(category.id)?.update(category);
  else leave(category);
}

/** Whether its place is in what is loaded; what belongs further down comes as one scrolls. */
function belongsHere(category) {
  const last = categoryOf(view.ids().at(-1));
  return next === null || !last || comesBefore(category, last);
}

/** It no longer belongs here: it says so, and goes with the next refresh if it is looked at right now. */
function leave(category) {
  if (!isLookedAt()) drop((id) => id === category.id);
  else if (cards.has(category.id)) {
    cards.get(category.id).update(category);
    news.disturb();
  }
}

/** Let a newcomer in at once if that disturbs nobody; the orders by name and size have no place for it at the top. */
function welcome(category) {
  news.add(category);
  if (!isLookedAt() && hasTop()) letIn();
}

const hasTop = () => filter.sort === "recent" || filter.sort === "created";

/** Whether a shift of the cards would move something from under a pointer, a focus or a reader. */
function isLookedAt() {
  if (currentView() !== "categories") return false;
  return scrollY > 120 || list.matches(":hover") || roving.isFocused() || selectedIds().length > 0;
}

/** Somebody else has moved, merged or undone something. */
function disturb(event) {
  if (event.actor === "stream" || event.kind === "named" || !loaded) return;
  if (isLookedAt()) news.disturb();
  else refresh();
}

function letIn() {
  const have = new Set(view.ids());
  const ids = news.waiting().map(({ id }) => id).filter((id) => !have.has(id));
  news.clear();
  ids.forEach((id) => fresh.add(id));
  show([...ids.reverse(), ...view.ids()]);
  setTotal(total + ids.length);
}

function openNews() {
  scrollTo({ top: 0, behavior: prefersStill() ? "instant" : "smooth" });
  if (news.needsRefresh() || !hasTop()) refresh();
  else letIn();
  list.querySelector("a.open")?.focus({ preventScroll: true });
}

const isFiltered = () => filter.q !== "" || filter.state !== "all";

function emptiness() {
  if (isFiltered()) {
    const why = filter.q ? `No name has “${filter.q}” in it.` : `There are no ${filter.state} categories.`;
    return empty("Nothing here", why);
  }
  const token = hasSession() ? `-H "Authorization: Bearer $TALON_TOKEN" ` : "";
  const command = `curl -F image=@photo.jpg ${token}${new URL("v1/decide", document.baseURI)}`;
  return empty(
    total ? "No images yet" : "No categories yet",
    "Send images to the stream, or drop one onto this page:",
    h("pre", {}, command),
    h("a.button", { href: "#/try" }, "Try an image"),
  );
}

let observer = null;

/** Ask for the next page when the end comes near. An observer tells once, so it is started anew after each page. */
function watchEnd() {
  observer?.disconnect();
  observer = new IntersectionObserver((entries) => entries.at(-1).isIntersecting && more(), { rootMargin: "900px" });
  observer.observe(sentinel);
}

/** The card so many steps further, which may have to be made first. */
function neighbour(element, step) {
  const ids = view.ids();
  const place = placeAfter(ids.indexOf(Number(element.dataset.id)), step, ids.length);
  return view.reveal(ids[place]);
}

export function startGrid() {
  filters = createFilters(reload);
  roving = rove(list, "li.card", "a.open", neighbour);
  handleGrid(list, cards, view.ids, filters.search);
  fill($("view-categories"), filters.element, news.element, list, note, sentinel);
  on("category", (category) => view.ids().includes(category.id) && arrive(category));
  on("arrival", arrive);
  on("arrivals-beyond", news.addUnseen);
  on("ledger", disturb);
  on("edited", refresh);
  on("missed", () => refresh());
  on("status", ({ totals }) => totals && next !== null && !isFiltered() && setTotal(totals.known + totals.discovered));
  on("signed-in", () => !loaded && reload());
  on("retry", () => (loaded ? refresh() : reload()));
  on("selection", () => cards.forEach((card, id) => (card.tick.checked = isSelected(id))));
  setInterval(() => cards.forEach((card) => card.clock()), MINUTE);
  addView("categories", {
    show(_, address) {
      if (filters.read(address) || !loaded) reload();
      else view.update();
      showSelection();
    },
    hide: () => queueMicrotask(showSelection),
  });
}
