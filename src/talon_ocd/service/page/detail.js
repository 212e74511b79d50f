// One category: its facts, its name to be edited, what it was merged from, and its images.

import { getCategory, getHistory } from "./api.js";
import { BADGES, mixBar, seenExactly } from "./cards.js";
import { $, fill, h } from "./dom.js";
import * as edits from "./edits.js";
import { exactly, images } from "./format.js";
import { icon } from "./icons.js";
import { onKey } from "./keys.js";
import { createMembers } from "./members.js";
import { openMerge } from "./merge.js";
import { editName } from "./naming.js";
import { addView, currentView, go } from "./router.js";
import { categoryOf, hasName, nameOf, on, remember } from "./store.js";
import { toast } from "./toast.js";

const HISTORY_PAGES = 10;

let present = null; // the category that is shown
let members = null;
const head = h("div.detail-head");
const body = h("div");

async function show(argument) {
  const id = Number(argument);
  if (present?.id === id && members) return;
  close();
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
    fill(head, h("div.empty", { role: "alert" }, h("h2", {}, problem.title ?? "It could not be loaded"), h("p", {}, problem.message), h("a.button", { href: "#/categories" }, "To the categories")));
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
  const { id, name, kind, state, count, verdicts, aliases, created } = present;
  const hidden = state === "hidden";
  fill(
    head,
    h("a.back", { href: "#/categories", title: "Back (Escape)" }, icon("back"), "Categories"),
    h(
      "div.detail-title",
      {},
      h("h1", {}, h(`button.name${hasName(present) ? "" : ".unnamed"}`, { id: "detail-name", type: "button", title: hasName(present) ? "Rename (R)" : "Give it a name (R)", onclick: startNaming }, h("span", {}, name), icon("pencil"))),
      h("span.badge.kind", {}, kind),
      state in BADGES && h("span.badge", {}, BADGES[state]),
    ),
    h("p.meta.facts-line", { title: seenExactly(present) }, [`#${id}`, images(count), present.first_seen && `first seen ${exactly(present.first_seen)}`, present.last_seen && `last seen ${exactly(present.last_seen)}`, Number.isInteger(created) && `founded by image ${created}`].filter(Boolean).join(" · ")),
    mixBar(verdicts),
    h(
      "div.detail-actions",
      {},
      h("button", { id: "detail-merge", type: "button", onclick: mergeThis }, icon("merge"), "Merge into…"),
      h("button", { id: "detail-hide", type: "button", onclick: () => edits.hide(id, !hidden) }, icon(hidden ? "eye" : "hide"), hidden ? "Show again" : "Hide"),
      h("span.note", {}, "Select images to split, move, confirm or reject them."),
    ),
    aliases?.length > 0 && h("div.aliases", {}, h("span.meta", {}, "Merged from "), aliases.map((alias) => h("button.chip", { type: "button", title: "Take it out again (undo its merge)", onclick: () => takeApart(alias) }, `#${alias}`, icon("undo")))),
  );
  if (focused) $(focused)?.focus();
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
    const event = items.find(({ kind, undone, data }) => kind === "merged" && !undone && data.categories?.includes(alias));
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
