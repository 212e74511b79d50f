// The map: images as points in two dimensions, coloured by category. Hover shows the image, a click opens the category.

import { getCategory, getMap } from "./api.js";
import { $, fill, h, write } from "./dom.js";
import { images, whole } from "./format.js";
import { createPlane } from "./map-plane.js";
import { thumbnail } from "./pictures.js";
import { addView, currentView, go } from "./router.js";
import { empty, failed } from "./states.js";
import { categoryOf, nameOf, on, remember } from "./store.js";

const LIMIT = 2000;

const canvas = h(
  "canvas",
  {
    tabIndex: 0,
    role: "application",
    "aria-label": "Map of images. Arrow keys walk from image to image, Enter opens the category.",
  },
);
const card = h("div.map-card", { hidden: true });
const legend = h("div.legend");
const caption = h("p.note");
const note = h("div");
const said = h("p.unseen", { "aria-live": "polite" });
const plane = createPlane(canvas, { hover, open });
let hovered = null;

async function show() {
  write(caption, "loading");
  fill(note);
  try {
    const { points, axes } = await getMap(LIMIT);
    plane.setPoints(points);
    const number = `${images(points.length)}${points.length >= LIMIT ? " (the newest)" : ""}`;
    write(caption, points.length ? `${number}, ${axes}. Scroll to zoom, drag to move, double click for all.` : "");
    const why = "The map is drawn from the features of images that the stream has seen.";
    fill(note, points.length === 0 && empty("No images yet", why));
    drawLegend(points);
  } catch (problem) {
    write(caption, "");
    fill(note, failed(problem, show));
  }
}

/** The largest categories of the map; the rest are told apart by hovering. */
async function drawLegend(points) {
  const counts = new Map();
  for (const { category } of points) counts.set(category, (counts.get(category) ?? 0) + 1);
  const largest = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 10);
  await Promise.all(largest.map(([id]) => known(id)));
  fill(
    legend,
    largest.map(([id]) => {
      const swatch = h("i.dot");
      swatch.style.background = plane.colour(id);
      const button = h(
        "button.chip",
        { type: "button", onclick: () => open({ category: id }) },
        swatch,
        id < 0 ? "rejected" : nameOf(id),
      );
      for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => plane.highlight(id));
      for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => plane.highlight(null));
      return button;
    }),
    counts.size > largest.length && h("span.note", {}, `and ${whole(counts.size - largest.length)} more`),
  );
}

const known = (id) => (id < 0 || categoryOf(id) ? Promise.resolve() : getCategory(id).then(remember, () => null));

async function hover(point, x, y) {
  hovered = point;
  card.hidden = !point;
  if (!point) return;
  const caption = h("b", {}, point.category < 0 ? "rejected" : nameOf(point.category));
  fill(card, thumbnail(point.index), caption, h("small", {}, `image ${point.index}`));
  const frame = canvas.getBoundingClientRect();
  card.style.left = `${Math.min(Math.max(x + 14, 4), Math.max(frame.width - 150, 4))}px`;
  card.style.top = `${Math.min(Math.max(y + 14, 4), Math.max(frame.height - 180, 4))}px`;
  await known(point.category);
  if (hovered !== point) return;
  write(caption, point.category < 0 ? "rejected" : nameOf(point.category));
  write(said, `${caption.textContent}, image ${point.index}`);
}

function open(point) {
  if (point.category >= 0) go(`category/${point.category}`);
}

export function startMap() {
  fill($("view-map"), h("h1", {}, "Map"), h("div.map", {}, canvas, card), said, caption, legend, note);
  on("edited", () => currentView() === "map" && show());
  addView("map", { show, hide: () => hover(null) });
}
