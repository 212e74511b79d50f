// The merge dialog: which categories go into which one, turned round with a click, with a preview of the result.

import { getCategory } from "./api.js";
import { mixBar, stillCard } from "./cards.js";
import { actions, openDialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { merge } from "./edits.js";
import { images, listed } from "./format.js";
import { icon } from "./icons.js";
import { mosaic } from "./pictures.js";
import { pickCategory } from "./picker.js";
import { categoryOf, remember } from "./store.js";

const SAFE = "Nothing is lost: old numbers stay valid, later images of any find it, and it can be undone.";

/** Which of several should keep its name: one that people named, then a known class, then the largest. */
function preferred(categories) {
  const rank = (category) => [category.named ? 1 : 0, category.kind === "known" ? 1 : 0, category.count, -category.id];
  return categories.reduce((best, one) => (compare(rank(one), rank(best)) > 0 ? one : best));
}

function compare(a, b) {
  const place = a.findIndex((value, index) => value !== b[index]);
  return place < 0 ? 0 : a[place] - b[place];
}

/** Let a person merge categories. A single one asks for its target first. Resolves to the answer, or null. */
export async function openMerge(ids, into) {
  const categories = await Promise.all(ids.map(async (id) => categoryOf(id) ?? remember(await getCategory(id))));
  if (categories.length === 1) {
    const target = await pickCategory(`Merge ${categories[0].name} into`, ids);
    if (!target) return null;
    categories.push(target);
    into = target.id;
  }
  const target = await chooseDirection(categories, into ?? preferred(categories).id);
  return target === undefined ? null : merge(categories.map(({ id }) => id), target);
}

/** Show what goes into what, until it is right. Resolves to the id of the one that stays, or undefined. */
function chooseDirection(categories, first) {
  const build = (close) => {
    const stage = h("div");
    const show = (into) => {
      fill(stage, direction(categories, into, show, close));
      stage.querySelector(".primary").focus({ preventScroll: true });
    };
    show(first);
    return stage;
  };
  return openDialog(`Merge ${categories.length} categories`, build, { kind: "wide" });
}

function direction(categories, into, show, close) {
  const target = categories.find(({ id }) => id === into);
  const sources = categories.filter(({ id }) => id !== into);
  const names = h("span", {}, listed(sources.map(({ name }) => name), 4));
  return [
    h("p.direction", { "aria-live": "polite" }, names, icon("arrow"), "into ", h("b", {}, target.name)),
    h(
      "div.versus",
      {},
      h("div.sources", {}, sources.map((source) => sourceCard(source, show))),
      sources.length === 1 ? swapButton(() => show(sources[0].id)) : h("span.versus-arrow", {}, icon("arrow")),
      preview(target, sources),
    ),
    h("p.note", {}, SAFE),
    actions(
      h("button", { type: "button", onclick: () => close() }, "Cancel"),
      h("button.primary", { type: "button", onclick: () => close(into) }, icon("merge"), `Merge into ${target.name}`),
    ),
  ];
}

function swapButton(onclick) {
  const label = "Swap the direction";
  const props = { type: "button", "aria-label": label, title: label, onclick };
  return h("button.versus-arrow.quiet", props, icon("arrow"), h("span.swap", {}, icon("swap"), "Swap"));
}

function sourceCard(source, show) {
  const keep = h("button.link", { type: "button", onclick: () => show(source.id) }, "Keep this one instead");
  return stillCard(source, keep);
}

/** How the category will look. */
function preview(target, sources) {
  const all = [target, ...sources];
  const verdicts = {};
  for (const [name, number] of all.flatMap((one) => Object.entries(one.verdicts))) {
    verdicts[name] = (verdicts[name] ?? 0) + number;
  }
  const exemplars = [
    ...target.exemplars.slice(0, 2),
    ...sources.flatMap((source) => source.exemplars.slice(0, 2)),
    ...target.exemplars.slice(2),
  ];
  return h(
    "div.card.still.result",
    {},
    mosaic([...new Set(exemplars)]),
    h(
      "div.card-text",
      {},
      h("b.name", {}, target.name),
      h("p.meta", {}, images(all.reduce((sum, { count }) => sum + count, 0)), h("small", {}, `#${target.id}`)),
      mixBar(verdicts),
      h("p.meta", {}, "after the merge"),
    ),
  );
}
