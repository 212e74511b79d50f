// The categories as a grid of cards: pages as one scrolls, changes in place, newcomers that don't make it jump.

import { getCategory, listCategories } from "./api.js";
import { createCard, skeletons } from "./cards.js";
import { $, fill, h, prefersStill } from "./dom.js";
import { comesBefore, createFilters, filter, fits, isShown } from "./filters.js";
import { handleGrid } from "./grid-actions.js";
import { createNews } from "./news.js";
import { rove } from "./roving.js";
import { addView, currentView } from "./router.js";
import { isSelected, select, selectedIds, showSelection } from "./selection.js";
import { empty, failed } from "./states.js";
import { on, remember, statusNow, touchedBy } from "./store.js";
import { complain } from "./toast.js";

const PAGE = 60;
const MOST_REFRESHED = 200;
const MINUTE = 60000;

const cards = new Map(); // by id, those in the grid
const list = h("ul.cards", { "aria-label": "Categories" });
const sentinel = h("div.sentinel");
const news = createNews(openNews);
const note = h("div");
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
  cards.clear();
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
  const fresh = page.items.filter((category) => isShown(remember(category)) && !cards.has(category.id));
  list.append(...fresh.map(add));
  next = page.next;
  setTotal(totalOf(page));
  roving.reset();
  watchEnd();
}

/** How many there are: the API's "all" counts what is merged, hidden or retired as well. */
function totalOf(page) {
  if (filter.state !== "all") return page.total;
  if (page.next === null) return cards.size;
  const totals = statusNow()?.totals;
  return totals && !filter.q ? totals.known + totals.discovered : page.total;
}

function add(category) {
  const card = createCard(category);
  cards.set(category.id, card);
  card.tick.checked = isSelected(category.id);
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
  const limit = Math.min(Math.max(cards.size, PAGE), MOST_REFRESHED);
  const rest = cards.size > limit;
  try {
    const page = await request(limit);
    news.clear();
    const shown = page.items.filter(isShown);
    const wanted = shown.map(({ id }) => id);
    for (const category of page.items) remember(category);
    for (const category of shown) {
      if (!cards.has(category.id)) add(category);
      else cards.get(category.id).update(category);
    }
    arrange(wanted);
    if (!rest) {
      for (const id of [...cards.keys()]) if (!wanted.includes(id)) drop(id);
      next = page.next;
    } else if (edit) await recheck([edit.event, edit.undone], wanted);
    setTotal(totalOf(page));
    watchEnd();
    roving.reset();
  } catch (problem) {
    complain(problem);
  }
}

/** Further down than is refreshed: look only at what the edit was about. */
async function recheck(events, done) {
  const ids = new Set(events.filter(Boolean).flatMap(touchedBy));
  for (const id of [...ids].filter((one) => !done.includes(one))) {
    const category = remember(await getCategory(id));
    if (cards.has(id) && !isShown(category)) drop(id);
    else arrive(category);
  }
}

/** Put the cards of these ids first, in this order, moving as few elements as possible. */
function arrange(ids) {
  let place = list.firstElementChild;
  for (const id of ids) {
    const { element } = cards.get(id);
    if (element === place) place = place.nextElementSibling;
    else list.insertBefore(element, place);
  }
}

function drop(id) {
  const card = cards.get(id);
  if (!card) return;
  const hadFocus = card.element.contains(document.activeElement);
  const neighbour = card.element.nextElementSibling ?? card.element.previousElementSibling;
  card.element.remove();
  cards.delete(id);
  if (isSelected(id)) select([id], false);
  roving.reset();
  if (hadFocus) neighbour?.querySelector("a.open")?.focus();
}

function setTotal(number) {
  total = Math.max(number, 0);
  filters.setTotal(total);
  const bare = [...cards.values()].every(({ category }) => category.count === 0) && !isFiltered();
  fill(note, ((total === 0 && !news.waiting().length) || bare) && emptiness());
}

/** A category that people or the stream have made or changed. */
function arrive(category) {
  const card = cards.get(category.id);
  if (card && fits(category)) card.update(category);
  else if (card) leave(card, category);
  else if (fits(category) && loaded && belongsHere(category)) welcome(category);
}

/** Whether its place is in what is loaded; what belongs further down comes as one scrolls. */
function belongsHere(category) {
  const last = cards.get(Number(list.lastElementChild?.dataset.id));
  return next === null || !last || comesBefore(category, last.category);
}

/** It no longer belongs here: it says so, and goes with the next refresh if it is looked at right now. */
function leave(card, category) {
  if (isShown(card.category)) setTotal(total - 1);
  if (isLookedAt()) card.update(category);
  else drop(category.id);
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
  const fresh = news.waiting().filter(({ id }) => !cards.has(id));
  news.clear();
  for (const category of fresh) {
    const element = add(category);
    element.classList.add("fresh");
    list.prepend(element);
  }
  setTotal(total + fresh.length);
  roving.reset();
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
  const command = `curl --data-binary @photo.jpg ${new URL("v1/decide", document.baseURI)}`;
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
  observer = new IntersectionObserver((entries) => entries[0].isIntersecting && more(), { rootMargin: "900px" });
  observer.observe(sentinel);
}

export function startGrid() {
  filters = createFilters(reload);
  roving = rove(list, "li.card", "a.open", more);
  handleGrid(list, cards, filters.search);
  fill($("view-categories"), filters.element, news.element, list, note, sentinel);
  on("category", (category) => (fits(category) ? cards.get(category.id)?.update(category) : arrive(category)));
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
      showSelection();
    },
    hide: () => queueMicrotask(showSelection),
  });
}
