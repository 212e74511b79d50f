// A category as a card: exemplars, name, count, first and last seen, verdict mix. Made once, then updated in place.

import { h, write } from "./dom.js";
import { ago, exactly, images, whole } from "./format.js";
import { mosaic, setMosaic } from "./pictures.js";
import { hasName } from "./store.js";

const VERDICTS = ["known", "discovered", "new"];
export const BADGES = { tentative: "tentative", hidden: "hidden", merged: "merged", retired: "retired" };

/** The bar that shows how the images of a category were answered. */
export function mixBar(verdicts) {
  const bar = h("span.mix", { role: "img" });
  setMix(bar, verdicts);
  return bar;
}

function setMix(bar, verdicts) {
  const parts = VERDICTS.filter((name) => verdicts?.[name]);
  const text = parts.map((name) => `${whole(verdicts[name])} ${name}`).join(", ") || "no answers yet";
  if (bar.title === text) return;
  bar.title = text;
  bar.setAttribute("aria-label", `answers: ${text}`);
  bar.replaceChildren(
    ...parts.map((name) => {
      const part = h(`i.${name}`);
      part.style.flexGrow = String(verdicts[name]);
      return part;
    }),
  );
}

/** "first 9 days ago, last 3 hr. ago". */
export function seen(category) {
  if (!category.last_seen) return "not seen yet";
  if (category.count <= 1) return `seen ${ago(category.last_seen)}`;
  const [first, last] = [ago(category.first_seen), ago(category.last_seen)];
  return first === last ? `seen ${last}` : `first ${first}, last ${last}`;
}

export const seenExactly = ({ first_seen, last_seen }) => `first ${exactly(first_seen)}, last ${exactly(last_seen)}`;

/** A card that can do nothing, for dialogs and questions. */
export function stillCard(category, ...more) {
  return h(
    "div.card.still",
    { data: { id: category.id } },
    mosaic(category.exemplars),
    h(
      "div.card-text",
      {},
      h("b.name", { title: category.name }, category.name),
      h("p.meta", {}, images(category.count), h("small", {}, `#${category.id}`)),
      mixBar(category.verdicts),
      ...more,
    ),
  );
}

/** A card of the grid: {element, open, tick, category, update(), clock()}. The grid handles its clicks and keys. */
export function createCard(category) {
  const frame = mosaic(category.exemplars);
  const open = h("a.open", { href: `#/category/${category.id}`, tabIndex: -1, draggable: "false" }, frame);
  const tick = h("input", { type: "checkbox", tabIndex: -1 });
  const badge = h("span.badge");
  const name = h("button.name", { type: "button", tabIndex: -1 });
  const count = h("span");
  const time = h("p.meta.seen");
  const mix = mixBar(category.verdicts);
  const text = h(
    "div.card-text",
    {},
    h("div.card-name", {}, name),
    h("p.meta", {}, count, h("small", {}, `#${category.id}`)),
    mix,
    time,
  );
  const element = h("li.card", { data: { id: category.id } }, open, h("label.pick", {}, tick), badge, text);
  const card = { element, open, tick, category };

  card.update = (now) => {
    card.category = now;
    element.dataset.state = now.state;
    element.dataset.kind = now.kind;
    element.classList.toggle("unnamed", !hasName(now));
    setMosaic(frame, now.exemplars);
    setMix(mix, now.verdicts);
    write(name, now.name);
    write(badge, BADGES[now.state] ?? "");
    badge.hidden = !(now.state in BADGES);
    write(count, images(now.count));
    card.clock();
    name.title = hasName(now) ? "Rename" : "Give it a name";
    const words = [now.name, now.kind, BADGES[now.state], images(now.count)].filter(Boolean);
    open.setAttribute("aria-label", words.join(", "));
    tick.setAttribute("aria-label", `Select ${now.name}`);
  };
  card.clock = () => {
    write(time, seen(card.category));
    time.title = seenExactly(card.category);
  };
  card.update(category);
  return card;
}

/** Grey shapes of cards, while the first page is on its way. */
export const skeletons = (number) => Array.from(
  { length: number },
  () => h("li.card.skeleton", { "aria-hidden": "true" }, h("span.mosaic"), h("div.card-text", {}, h("i"), h("i"))),
);
