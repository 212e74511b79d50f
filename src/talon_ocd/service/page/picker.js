// A dialog in which a person looks for one category: the target of a move or of a merge.

import { listCategories } from "./api.js";
import { openDialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { images } from "./format.js";
import { mosaic } from "./pictures.js";
import { remember } from "./store.js";
import { complain } from "./toast.js";

const DELAY = 150;
const MOST = 40;
const PAGE = 100;
const GONE = ["merged", "retired"];

/** Resolves to the chosen category, or undefined. */
export function pickCategory(title, exclude = []) {
  return openDialog(
    title,
    (close) => {
      const list = h("ul.choices", { "aria-label": "Categories" });
      const field = h(
        "input.wide",
        { type: "search", placeholder: "Search by name", "aria-label": "Search", autofocus: true, autocomplete: "off" },
      );
      let timer = 0;
      let asked = 0;

      const search = async () => {
        const mine = ++asked;
        try {
          const choices = await find(field.value.trim(), exclude);
          if (mine !== asked) return; // a later search is on its way
          fill(list, choices.map((category) => choice(remember(category), close)));
          if (!choices.length) fill(list, h("li.note", {}, "No category is called so."));
        } catch (problem) {
          complain(problem);
        }
      };
      field.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(search, DELAY);
      });
      field.addEventListener("keydown", (event) => {
        if (event.key === "Enter") list.querySelector("button")?.click();
        if (event.key === "ArrowDown") focusChoice(list, 0, event);
      });
      list.addEventListener("keydown", (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        const place = [...list.children].indexOf(event.target.closest("li"));
        if (step && place + step < 0) field.focus();
        else if (step) focusChoice(list, place + step, event);
      });
      search();
      return [field, list];
    },
    { kind: "medium" },
  );
}

/** The largest categories that can be chosen; pages are turned over, because those that are gone may fill some. */
async function find(q, exclude) {
  const choices = [];
  let cursor;
  do {
    const page = await listCategories({ state: "all", q, sort: "count", limit: PAGE, cursor });
    choices.push(...page.items.filter(({ id, state }) => !GONE.includes(state) && !exclude.includes(id)));
    cursor = page.next;
  } while (cursor && choices.length < MOST);
  return choices.slice(0, MOST);
}

function choice(category, close) {
  return h(
    "li",
    {},
    h(
      "button.choice",
      { type: "button", onclick: () => close(category) },
      mosaic(category.exemplars),
      h("b", {}, category.name),
      h("small", {}, `${images(category.count)}, #${category.id}`),
    ),
  );
}

function focusChoice(list, place, event) {
  event.preventDefault();
  list.children[place]?.querySelector("button")?.focus();
}
