// What clicks and keys do on the cards. One listener for the whole grid: ten thousand cards need no more than one.

import { hide } from "./edits.js";
import { lettersOn, onKey } from "./keys.js";
import { openMerge } from "./merge.js";
import { editName } from "./naming.js";
import { go } from "./router.js";
import { clearSelection, isSelected, select, selectedIds } from "./selection.js";

let anchor = null; // where a range of selected cards begins

/** `cards` is the grid's map from ids to cards, `ids()` tells all in their order. */
export function handleGrid(list, cards, ids, search) {
  const cardAt = (target) => cards.get(Number(target.closest?.("li.card")?.dataset.id));

  list.addEventListener("click", (event) => {
    const card = cardAt(event.target);
    if (!card) return;
    if (event.target.closest("button.name")) editName(event.target.closest("button.name"), card.category);
    else if (event.target.closest(".pick")) pick(event, card);
    else if (event.target.closest("a, input")) return;
    else go(`category/${card.category.id}`);
  });
  list.addEventListener("keydown", (event) => {
    const card = event.target.matches("a.open") && cardAt(event.target);
    const action = ACTIONS[event.key];
    if (!card || !action || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== " " && event.key.length === 1 && !lettersOn()) return;
    event.preventDefault();
    action(card);
  });

  function pick(event, card) {
    if (!(event.target instanceof HTMLInputElement)) return; // the label passes its click on to the box
    const { id } = card.category;
    const range = event.shiftKey && anchor !== null ? between(ids(), anchor, id) : [id];
    select(range, event.target.checked);
    anchor = id;
  }

  onKey("/", "categories", "Search", () => search.focus());
  onKey("Escape", "categories", "Clear the selection", () => clearSelection());
  search.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "Enter") list.querySelector("a.open")?.focus();
  });
}

/** Keys of the card that has the focus; Enter follows the link by itself. */
const ACTIONS = { " ": toggle, x: toggle, F2: name, r: name, m: merge, d: putAway };

function toggle({ category }) {
  select([category.id], !isSelected(category.id));
  anchor = category.id;
}

function name({ element, category }) {
  const button = element.querySelector("button.name");
  if (button) editName(button, category);
}

async function merge({ category }) {
  const ids = selectedIds().length ? selectedIds() : [category.id];
  if (await openMerge(ids)) clearSelection();
}

function putAway({ category }) {
  hide(category.id, category.state !== "hidden");
}

/** Ids of the cards from one to the other, as they stand. */
function between(ids, first, last) {
  const [from, to] = [ids.indexOf(first), ids.indexOf(last)].sort((a, b) => a - b);
  return ids.slice(Math.max(from, 0), to + 1);
}
