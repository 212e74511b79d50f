// Which view is shown: the part of the address behind the #, so that back, reload and bookmarks work.

import { $ } from "./dom.js";

const views = new Map();
let shown = null;

/** Register a view: {show(argument, query), hide?()}; its element is the section "view-NAME". */
export function addView(name, view, navigation = name) {
  views.set(name, { ...view, element: $(`view-${name}`), navigation });
}

/** "#/category/7?x=1" as its parts. */
function parsed() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, argument] = path.split("/");
  return { name: views.has(name) ? name : "categories", argument, query: new URLSearchParams(query) };
}

export const currentView = () => shown;

export function go(path) {
  location.hash = `#/${path}`;
}

/** Change the query of the present view without a step in the browser's history. */
export function setQuery(query) {
  const text = new URLSearchParams(query).toString();
  history.replaceState(null, "", `#/${shown}${text ? `?${text}` : ""}`);
}

function route() {
  const { name, argument, query } = parsed();
  const view = views.get(name);
  if (shown && shown !== name) {
    const before = views.get(shown);
    before.scroll = scrollY;
    before.hide?.();
  }
  const arrived = shown !== name;
  shown = name;
  for (const other of views.values()) other.element.hidden = other !== view;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === view.navigation) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `talon: ${view.element.getAttribute("aria-label")}`;
  view.show(argument, query);
  if (arrived) scrollTo({ top: name === "categories" ? view.scroll ?? 0 : 0, behavior: "instant" });
}

export function startRouter() {
  addEventListener("hashchange", () => {
    if (location.hash !== "#main") route(); // the skip link
  });
  route();
}
