// What of the catalog is shown: state, search text, order. Kept in the address, so that it survives a reload.

import { fill, h, write } from "./dom.js";
import { categories } from "./format.js";
import { icon } from "./icons.js";
import { setQuery } from "./router.js";

const STATES = [
  ["all", "All"],
  ["known", "Known"],
  ["discovered", "Discovered"],
  ["tentative", "Tentative"],
  ["hidden", "Hidden"],
];
const SORTS = [["recent", "last seen"], ["created", "newest first"], ["count", "largest first"], ["name", "by name"]];
const DELAY = 200;

/** How the orders compare two categories; newcomers are let in only where they belong. */
const BEFORE = {
  recent: (a, b) => (a.last_seen ?? 0) >= (b.last_seen ?? 0),
  created: (a, b) => a.id >= b.id,
  count: (a, b) => a.count >= b.count,
  name: (a, b) => a.name <= b.name,
};

export const filter = { state: "all", q: "", sort: "recent" };

/** Whether a category is called what is searched for; the service also finds it by the names it had. */
const isCalled = ({ name }) => name.toLowerCase().includes(filter.q.toLowerCase());

/** Whether a category belongs into the list as it is filtered now. */
export const fits = (category) => isShown(category) && isCalled(category);

/** Whether it is in the state that is asked for: the API's "all" has what is merged, hidden or retired as well. */
export function isShown({ state, kind }) {
  if (filter.state === "hidden" || filter.state === "tentative") return state === filter.state;
  return ["active", "tentative"].includes(state) && (filter.state === "all" || kind === filter.state);
}

/** Whether a category comes before another one in the chosen order. */
export const comesBefore = (category, other) => BEFORE[filter.sort](category, other);

/** Build the toolbar; `changed()` is called when a person asks for something else. */
export function createFilters(changed) {
  let timer = 0;
  const total = h("span.total", { "aria-live": "polite" });
  const search = h(
    "input",
    {
      type: "search",
      placeholder: "Search names",
      "aria-label": "Search names",
      "aria-keyshortcuts": "/",
      value: filter.q,
      autocomplete: "off",
      spellcheck: "false",
    },
  );
  const sort = h(
    "select",
    { "aria-label": "Order" },
    SORTS.map(([value, text]) => h("option", { value, selected: value === filter.sort }, text)),
  );
  const chips = h("div.chips", { role: "group", "aria-label": "Show" });

  const apply = () => {
    drawChips();
    keep();
    changed();
  };
  const choose = (state) => {
    filter.state = state;
    apply();
  };
  function drawChips() {
    const focused = document.activeElement?.dataset?.state;
    fill(
      chips,
      STATES.map(([state, text]) => {
        const pressed = String(filter.state === state);
        const props = { type: "button", data: { state }, "aria-pressed": pressed, onclick: () => choose(state) };
        return h("button.chip", props, text);
      }),
    );
    if (focused) chips.querySelector(`[data-state="${focused}"]`)?.focus();
  }
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      filter.q = search.value.trim();
      apply();
    }, DELAY);
  });
  sort.addEventListener("change", () => {
    filter.sort = sort.value;
    apply();
  });
  drawChips();
  return {
    element: h("div.filters", {}, chips, h("label.search", {}, icon("search"), search), sort, total),
    search,
    setTotal: (number) => write(total, categories(number)),
    /** Take over what the address says; true if that is something else than before. */
    read(query) {
      const before = JSON.stringify(filter);
      filter.state = STATES.some(([state]) => state === query.get("state")) ? query.get("state") : "all";
      filter.sort = SORTS.some(([value]) => value === query.get("sort")) ? query.get("sort") : "recent";
      filter.q = query.get("q") ?? "";
      if (search.value.trim() !== filter.q) search.value = filter.q;
      sort.value = filter.sort;
      drawChips();
      return before !== JSON.stringify(filter);
    },
  };
}

function keep() {
  const query = {};
  if (filter.state !== "all") query.state = filter.state;
  if (filter.sort !== "recent") query.sort = filter.sort;
  if (filter.q) query.q = filter.q;
  setQuery(query);
}
