// Keyboard shortcuts: parts of the page register theirs, "?" lists them, a switch turns single letters off.

import { dialogIsOpen, openDialog } from "./dialog.js";
import { h, isTyping } from "./dom.js";
import { currentView } from "./router.js";

const STORED = "talon.letter-keys";
const shortcuts = []; // {key, view, text, run}

/** The keys of a focused card or image, which are handled where they are, but belong into the list. */
const LOCAL = [
  ["Arrow keys", "Walk over cards or images"],
  ["Enter", "Open the card or image"],
  ["Space", "Select it (with Shift and the pointer: a range)"],
  ["R or F2", "Name the card"],
  ["M", "Merge the selected cards, or this one"],
  ["D", "Hide the card"],
];

const VIEWS = { categories: "Categories", category: "Inside a category", same: "Same?", map: "Map" };

/** Register a key for a view ("" for everywhere). */
export function onKey(key, view, text, run) {
  shortcuts.push({ key, view, text, run });
}

/** Whether single letters are shortcuts; speech input and some screen readers need them off. */
export function lettersOn() {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true;
  }
}

function press(event) {
  if (event.defaultPrevented || event.isComposing || dialogIsOpen() || isTyping(event.target)) return;
  const name = nameOf(event);
  const view = currentView();
  const found = shortcuts.find(
    (one) => one.key === name && one.view === view,
  ) ?? shortcuts.find((one) => one.key === name && !one.view);
  if (!found || (name.length === 1 && !lettersOn())) return;
  event.preventDefault();
  found.run(event);
}

function nameOf(event) {
  const control = event.ctrlKey || event.metaKey;
  const key = event.key.length === 1 ? event.key.toUpperCase() : event.key;
  if (event.altKey) return `Alt+${key}`;
  return control ? `Ctrl+${event.shiftKey ? "Shift+" : ""}${key}` : key;
}

export function showKeys() {
  const table = (title, rows) => [
    h("h3", {}, title),
    h("dl.keys", {}, rows.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))),
  ];
  const of = (view) => shortcuts.filter((one) => one.view === view).map(({ key, text }) => [key, text]);
  return openDialog(
    "Keys",
    () => {
      const box = h("input", { type: "checkbox", checked: lettersOn() });
      box.addEventListener("change", () => {
        try {
          localStorage.setItem(STORED, box.checked ? "on" : "off");
        } catch {
          box.checked = true; // can't be kept, so it stays on
        }
      });
      return h(
        "div.key-tables",
        {},
        h("div", {}, table("Everywhere", of("")), table("On a card or image", LOCAL)),
        h("div", {}, Object.entries(VIEWS).map(([view, title]) => of(view).length > 0 && table(title, of(view)))),
        h("label.switch", {}, box, h("span", {}, "Single letters are shortcuts")),
      );
    },
    { kind: "wide" },
  );
}

export function startKeys() {
  document.addEventListener("keydown", press);
  onKey("?", "", "Show the keys", showKeys);
}
