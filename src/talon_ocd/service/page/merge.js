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

/** Which of several should keep its name: one that people named, then a known class, then the largest. */
export function preferred(categories) {
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

function chooseDirection(categories, first) {
  return openDialog(
    `Merge ${categories.length} categories`,
    (close) => {
      let into = first;
      const stage = h("div");
      const turn = (id) => {
        into = id;
        draw();
      };
      const draw = () => {
        const target = categories.find(({ id }) => id === into);
        const sources = categories.filter(({ id }) => id !== into);
        fill(
          stage,
          h("p.direction", { "aria-live": "polite" }, h("span", {}, listed(sources.map(({ name }) => name), 4)), icon("arrow"), "into ", h("b", {}, target.name)),
          h(
            "div.versus",
            {},
            h("div.sources", {}, sources.map((source) => sourceCard(source, turn))),
            sources.length === 1
              ? h("button.versus-arrow.quiet", { type: "button", "aria-label": "Swap the direction", title: "Swap the direction", onclick: () => turn(sources[0].id) }, icon("arrow"), h("span.swap", {}, icon("swap"), "Swap"))
              : h("span.versus-arrow", {}, icon("arrow")),
            preview(target, sources),
          ),
          h("p.note", {}, "Nothing is lost: the old numbers stay valid, later images of any of them find the merged category, and it can be undone at any time."),
          actions(
            h("button", { type: "button", onclick: () => close() }, "Cancel"),
            h("button.primary", { type: "button", onclick: () => close(into) }, icon("merge"), `Merge into ${target.name}`),
          ),
        );
        stage.querySelector(".primary").focus({ preventScroll: true });
      };
      draw();
      return stage;
    },
    { kind: "wide" },
  );
}

function sourceCard(source, turn) {
  return stillCard(source, h("button.link", { type: "button", onclick: () => turn(source.id) }, "Keep this one instead"));
}

/** How the category will look. */
function preview(target, sources) {
  const all = [target, ...sources];
  const verdicts = {};
  for (const { verdicts: mix } of all) for (const [name, number] of Object.entries(mix)) verdicts[name] = (verdicts[name] ?? 0) + number;
  const exemplars = [...target.exemplars.slice(0, 2), ...sources.flatMap((source) => source.exemplars.slice(0, 2)), ...target.exemplars.slice(2)];
  return h(
    "div.card.still.result",
    {},
    mosaic([...new Set(exemplars)]),
    h("div.card-text", {}, h("b.name", {}, target.name), h("p.meta", {}, images(all.reduce((sum, { count }) => sum + count, 0)), h("small", {}, `#${target.id}`)), mixBar(verdicts), h("p.meta", {}, "after the merge")),
  );
}
