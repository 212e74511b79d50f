// The categories as a grid of cards: pages as one scrolls, changes in place, newcomers without a jump under the pointer.

import { listCategories } from "./api.js";
import { createCard, skeletons } from "./cards.js";
import { $, fill, h, prefersStill } from "./dom.js";
import { createFilters, filter, fits } from "./filters.js";
import { categories as counted } from "./format.js";
import { handleGrid } from "./grid-actions.js";
import { rove } from "./roving.js";
import { addView, currentView } from "./router.js";
import { isSelected, select, selectedIds, showSelection } from "./selection.js";
import { on, remember, statusNow } from "./store.js";
import { complain } from "./toast.js";

const PAGE = 60;
const MOST_REFRESHED = 200;
const MINUTE = 60000;

const cards = new Map(); // by id, those in the grid
const waiting = new Map(); // newcomers that are not shown yet
const list = h("ul.cards", { "aria-label": "Categories" });
const sentinel = h("div.sentinel");
const news = h("button.news", { type: "button", hidden: true });
const note = h("div");
let filters;
let roving;
let next = null;
let total = 0;
let beyond = 0; // newcomers that were too many to be fetched one by one
let stale = false; // whether others changed what is shown
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
  forgetNews();
  fill(note);
  fill(list, skeletons(12));
  list.setAttribute("aria-busy", "true");
  next = null;
  try {
    const page = await request(PAGE);
    fill(list);
    take(page);
    loaded = true;
  } catch (problem) {
    if (problem.name === "AbortError") return;
    fill(list);
    fill(note, failure(problem));
  }
  list.setAttribute("aria-busy", "false");
}

function take(page) {
  for (const category of page.items) if (fits(remember(category)) && !cards.has(category.id)) list.append(add(category));
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
async function refresh() {
  if (!loaded) return;
  const limit = Math.min(Math.max(cards.size, PAGE), MOST_REFRESHED);
  const rest = cards.size > limit;
  try {
    const page = await request(limit);
    forgetNews();
    const shown = page.items.filter(fits);
    const wanted = shown.map(({ id }) => id);
    for (const category of page.items) remember(category);
    for (const category of shown) {
      if (!cards.has(category.id)) add(category);
      else cards.get(category.id).update(category);
    }
    if (!rest) {
      for (const id of [...cards.keys()]) if (!wanted.includes(id)) drop(id);
      next = page.next;
    }
    arrange(wanted);
    setTotal(totalOf(page));
    watchEnd();
    roving.reset();
  } catch (problem) {
    complain(problem);
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
  const unseen = filter.state === "all" && !filter.q && [...cards.values()].every(({ category }) => category.count === 0);
  fill(note, ((total === 0 && !waiting.size) || unseen) && emptiness());
}

/** A category that people or the stream have made or changed. */
function arrive(category) {
  const card = cards.get(category.id);
  if (card && fits(category)) card.update(category);
  else if (card) leave(card, category);
  else if (fits(category) && loaded) welcome(category);
}

/** It no longer belongs here: it says so, and goes with the next refresh if it is looked at right now. */
function leave(card, category) {
  if (isLookedAt()) card.update(category);
  else drop(category.id);
  setTotal(total - 1);
}

function welcome(category) {
  waiting.set(category.id, category);
  if (isLookedAt() || filter.sort === "name" || filter.sort === "count") showNews();
  else letIn();
}

/** Whether a shift of the cards would move something from under a pointer, a focus or a reader. */
function isLookedAt() {
  return currentView() !== "categories" ? false : scrollY > 120 || list.matches(":hover") || roving.isFocused() || selectedIds().length > 0;
}

function showNews() {
  const number = waiting.size + beyond;
  news.hidden = number === 0 && !stale;
  fill(news, number ? `${counted(number).replace(" ", " new ")}: show` : "Others have changed something: show");
}

/** Somebody else has moved, merged or undone something. */
function disturb(event) {
  if (event.actor === "stream" || event.kind === "named" || !loaded) return;
  stale = isLookedAt();
  if (stale) showNews();
  else refresh();
}

function letIn() {
  const fresh = [...waiting.values()].filter(({ id }) => !cards.has(id));
  forgetNews();
  for (const category of fresh) {
    const element = add(category);
    element.classList.add("fresh");
    list.prepend(element);
  }
  setTotal(total + fresh.length);
  roving.reset();
}

function forgetNews() {
  waiting.clear();
  beyond = 0;
  stale = false;
  news.hidden = true;
}

function openNews() {
  scrollTo({ top: 0, behavior: prefersStill() ? "instant" : "smooth" });
  if (beyond || stale || filter.sort === "name" || filter.sort === "count") refresh();
  else letIn();
  list.querySelector("a.open")?.focus({ preventScroll: true });
}

function emptiness() {
  if (filter.q || filter.state !== "all") {
    return h("div.empty", {}, h("h2", {}, "Nothing here"), h("p", {}, filter.q ? `No category with “${filter.q}” in its name.` : `There are no ${filter.state} categories.`));
  }
  const command = `curl --data-binary @photo.jpg ${new URL("v1/decide", document.baseURI)}`;
  const title = total ? "No images yet" : "No categories yet";
  return h("div.empty", {}, h("h2", {}, title), h("p", {}, "Send images to the stream, or drop one onto this page:"), h("pre", {}, command), h("p", {}, h("a.button", { href: "#/try" }, "Try an image")));
}

function failure(problem) {
  return h("div.empty", { role: "alert" }, h("h2", {}, problem.title ?? "The categories could not be loaded"), h("p", {}, problem.message), h("button", { type: "button", onclick: reload }, "Try again"));
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
  news.addEventListener("click", openNews);
  fill($("view-categories"), filters.element, h("div.news-place", { "aria-live": "polite" }, news), list, note, sentinel);
  on("category", (category) => (fits(category) ? cards.get(category.id)?.update(category) : arrive(category)));
  on("arrival", arrive);
  on("arrivals-beyond", (number) => {
    beyond += number;
    showNews();
  });
  on("ledger", disturb);
  on("edited", refresh);
  on("missed", refresh);
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
