// One category: its facts, its name to be edited, what it was merged from, and its images.

import { getCategory, getHistory } from "./api.js";
import { BADGES, mixBar } from "./cards.js";
import { $, fill, h } from "./dom.js";
import * as edits from "./edits.js";
import { exactly, images } from "./format.js";
import { icon } from "./icons.js";
import { onKey } from "./keys.js";
import { createMembers } from "./members.js";
import { openMerge } from "./merge.js";
import { editName } from "./naming.js";
import { addView, currentView, go } from "./router.js";
import { failed } from "./states.js";
import { categoryOf, hasName, nameOf, on, remember } from "./store.js";
import { toast } from "./toast.js";

const HISTORY_PAGES = 10;
const HOPELESS = [404, 422]; // there is no such category, however often one asks

let wanted = null; // what the address asks for
let present = null; // the category that is shown
let members = null;
const head = h("div.detail-head");
const body = h("div");

async function show(argument) {
  const id = Number(argument);
  if (present?.id === id && members) return;
  close();
  wanted = argument;
  present = categoryOf(id) ?? null;
  fill(body);
  if (present) draw();
  else fill(head, h("p.note", {}, "loading"));
  try {
    const category = remember(await getCategory(argument));
    if (currentView() !== "category" || !location.hash.startsWith(`#/category/${argument}`)) return;
    if (category.state === "merged" && Number.isInteger(category.into)) {
      toast(`${category.name} (#${id}) is part of another category now.`);
      location.replace(`#/category/${category.into}`);
      return;
    }
    present = category;
    draw();
    members = createMembers(category);
    fill(body, members.element);
  } catch (problem) {
    const again = !HOPELESS.includes(problem.status) && (() => show(argument));
    fill(head, failed(problem, again, h("a.button", { href: "#/categories" }, "To the categories")));
  }
}

function close() {
  members?.close();
  members = null;
  present = null;
}

function draw() {
  if (head.querySelector(".name-field")) return; // somebody is typing a name
  const focused = head.contains(document.activeElement) ? document.activeElement.id : "";
  const back = h("a.back", { href: "#/categories", title: "Back (Escape)" }, icon("back"), "Categories");
  fill(head, back, title(), facts(), mixBar(present.verdicts), buttons(), aliases());
  if (focused) $(focused)?.focus();
}

function title() {
  const { name, kind, state } = present;
  const hint = hasName(present) ? "Rename (R)" : "Give it a name (R)";
  const button = h(
    `button.name${hasName(present) ? "" : ".unnamed"}`,
    { id: "detail-name", type: "button", title: hint, onclick: startNaming },
    h("span", {}, name),
    icon("pencil"),
  );
  const badge = state in BADGES && h("span.badge", {}, BADGES[state]);
  return h("div.detail-title", {}, h("h1", {}, button), h("span.badge.kind", {}, kind), badge);
}

function facts() {
  const { id, count, first_seen, last_seen, created } = present;
  const parts = [
    `#${id}`,
    images(count),
    first_seen && `first seen ${exactly(first_seen)}`,
    last_seen && `last seen ${exactly(last_seen)}`,
    Number.isInteger(created) && `founded by image ${created}`,
  ];
  return h("p.meta", {}, parts.filter(Boolean).join(" · "));
}

function buttons() {
  const { id, state } = present;
  const hidden = state === "hidden";
  return h(
    "div.detail-actions",
    {},
    h("button", { id: "detail-merge", type: "button", onclick: mergeThis }, icon("merge"), "Merge into…"),
    h(
      "button",
      { id: "detail-hide", type: "button", onclick: () => edits.hide(id, !hidden) },
      icon(hidden ? "eye" : "hide"),
      hidden ? "Show again" : "Hide",
    ),
    h("span.note", {}, "Select images to split, move, confirm or reject them."),
  );
}

/** What was merged into it; each can be taken out again. */
function aliases() {
  if (!present.aliases.length) return null;
  const chip = (alias) =>
    h(
      "button.chip",
      { type: "button", title: "Take it out again (undo its merge)", onclick: () => takeApart(alias) },
      `#${alias}`,
      icon("undo"),
    );
  return h("div.aliases", {}, h("span.meta", {}, "Merged from "), present.aliases.map(chip));
}

async function startNaming() {
  const button = head.querySelector("button.name");
  if (!button) return;
  const answer = await editName(button, present);
  if (answer?.category && answer.category.id !== present?.id) go(`category/${answer.category.id}`);
  else if (present) draw();
}

async function mergeThis() {
  const answer = await openMerge([present.id]);
  const into = answer?.category?.id ?? answer?.event?.data?.into;
  if (Number.isInteger(into) && into !== present?.id) go(`category/${into}`);
}

/** Undo the merge that brought an alias here: the newest one that still counts. */
async function takeApart(alias) {
  let before;
  for (let page = 0; page < HISTORY_PAGES; page++) {
    const { items, next } = await getHistory({ limit: 200, before });
    const event = items.find(
      ({ kind, undone, data }) => kind === "merged" && !undone && data.categories?.includes(alias),
    );
    if (event) return edits.undo(event.seq);
    if (next === null || next === undefined) break;
    before = next;
  }
  return toast(`The merge of ${nameOf(alias)} was not found; look into the history.`, { kind: "error" });
}

async function reread() {
  if (currentView() !== "category" || !present) return;
  const { id } = present;
  const category = await getCategory(id).then(remember, () => null);
  if (!category || present?.id !== id) return;
  if (category.state === "merged" && Number.isInteger(category.into)) {
    go(`category/${category.into}`);
    return;
  }
  present = category;
  draw();
  members?.refresh();
}

export function startDetail() {
  fill($("view-category"), head, body);
  on("edited", reread);
  on("retry", () => currentView() === "category" && (members ? reread() : show(wanted)));
  on("category", (category) => {
    if (category.id !== present?.id || currentView() !== "category") return;
    present = category;
    draw();
  });
  onKey("R", "category", "Name it", startNaming);
  onKey("F2", "category", "Name it", startNaming);
  onKey("M", "category", "Merge it into another", mergeThis);
  onKey("A", "category", "Select all loaded images", () => members?.selectAll());
  onKey("Escape", "category", "Clear the selection, then go back", () => members?.clear() || go("categories"));
  addView("category", { show, hide: close }, "categories");
}
