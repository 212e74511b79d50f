// Which categories are selected, and the bar that says what can be done with them.

import { $, fill, h } from "./dom.js";
import { hide } from "./edits.js";
import { whole } from "./format.js";
import { icon } from "./icons.js";
import { openMerge } from "./merge.js";
import { currentView } from "./router.js";
import { emit } from "./store.js";

const selected = new Set();

export const isSelected = (id) => selected.has(id);
export const selectedIds = () => [...selected];

export function select(ids, value = true) {
  for (const id of ids) {
    if (value) selected.add(id);
    else selected.delete(id);
  }
  emit("selection", selected);
  showSelection();
}

export const clearSelection = () => select(selectedIds(), false);

async function mergeSelected() {
  if (await openMerge(selectedIds())) clearSelection();
}

async function hideSelected() {
  for (const id of selectedIds()) await hide(id, true);
  clearSelection();
}

export function showSelection() {
  const bar = $("selection");
  bar.hidden = selected.size === 0 || currentView() !== "categories";
  document.body.classList.toggle("selecting", !bar.hidden);
  if (bar.hidden) return;
  fill(
    bar,
    h("b", { "aria-live": "polite" }, `${whole(selected.size)} selected`),
    h(
      "button.primary",
      { type: "button", onclick: mergeSelected },
      icon("merge"),
      selected.size === 1 ? "Merge into…" : "Merge…",
    ),
    h("button", { type: "button", onclick: hideSelected }, icon("hide"), "Hide"),
    h("button.quiet", { type: "button", onclick: clearSelection, title: "Clear (Escape)" }, "Clear"),
  );
}
