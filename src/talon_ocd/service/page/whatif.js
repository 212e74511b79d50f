// What if the threshold were another one: how many categories there would be, from stored features.

import { getWhatIf } from "./api.js";
import { $, fill, h, s, write } from "./dom.js";
import { categories, difference, images, score, whole } from "./format.js";
import { icon } from "./icons.js";
import { addView } from "./router.js";
import { empty, failed } from "./states.js";
import { toast } from "./toast.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [260, 46, 18, 16, 34];
const WIDEST = 640;

const COSINE =
  "An image joins a category when its cosine reaches the threshold. A higher threshold makes more, finer categories.";
const EVIDENCE =
  "An image joins a category when the evidence speaks for it. Asking for more nats of evidence makes more, finer ones.";

const stage = h("div.whatif");

async function show() {
  fill(
    stage,
    h("h1", {}, "Threshold"),
    h("div.chart.skeleton", { "aria-hidden": "true" }),
    h("p.note", {}, "Working it out from stored features; the first time may take a while."),
  );
  try {
    draw(await getWhatIf());
  } catch (problem) {
    fill(stage, h("h1", {}, "Threshold"), failed(problem, show));
  }
}

function draw(curve) {
  const { unit, current, points, images: number } = curve;
  if (!points?.length) {
    const why = "The stream has to see some images first.";
    fill(stage, h("h1", {}, "Threshold"), empty("Nothing to work it out from yet", why));
    return;
  }
  const now = nearestPlace(points, current);
  const chart = createChart(points, now);
  const slider = h(
    "input",
    {
      type: "range",
      min: 0,
      max: points.length - 1,
      step: 1,
      value: now,
      "aria-label": unit === "cosine" ? "Threshold" : "Finer, in nats",
    },
  );
  const answer = h("p.answer", { "aria-live": "polite" });
  const detail = h("p.note");
  const command = h("code");
  const copy = h(
    "button.quiet.icon",
    { type: "button", title: "Copy", "aria-label": "Copy the command", onclick: () => copyText(command.textContent) },
    icon("copy"),
  );

  const move = () => {
    const place = Number(slider.value);
    const point = points[place];
    chart.point(place);
    slider.setAttribute("aria-valuetext", `${label(unit, point.value)}: ${categories(point.categories)}`);
    fill(
      answer,
      h("b", {}, whole(point.categories)),
      ` ${point.categories === 1 ? "category" : "categories"} at `,
      h("b", {}, label(unit, point.value)),
    );
    write(detail, comparison(point, points[now], place === now));
    const option = unit === "cosine" ? `--threshold ${point.value.toFixed(3)}` : `--finer ${point.value}`;
    write(command, `talon stream replay STREAM -m MODEL -o NEW ${option}`);
  };
  slider.addEventListener("input", move);
  fill(
    stage,
    h("h1", {}, "Threshold"),
    h("p.note", {}, unit === "cosine" ? COSINE : EVIDENCE),
    h(
      "div.panel",
      {},
      answer,
      chart.element,
      h("div.slider", {}, h("small", {}, "fewer"), slider, h("small", {}, "finer")),
      detail,
    ),
    h(
      "p.note",
      {},
      `What would have happened to ${images(number)} that are stored. The slider changes nothing: a stream keeps the `,
      "value that it was begun with. To have all images answered anew, with their names, stop the service and run ",
      command,
      copy,
    ),
  );
  move();
}

function nearestPlace(points, value) {
  const distances = points.map((point) => Math.abs(point.value - value));
  return distances.indexOf(Math.min(...distances));
}

function label(unit, value) {
  if (unit === "cosine") return `threshold ${value.toFixed(3)}`;
  return `${value ? difference(value) : score(0)} nats`;
}

function comparison(point, today, same) {
  if (same) return `This is the present value: ${whole(point.discovered)} of them discovered.`;
  const change = point.categories - today.categories;
  const words = change === 0 ? "as many as" : `${whole(Math.abs(change))} ${change > 0 ? "more" : "fewer"} than`;
  return `${whole(point.discovered)} of them discovered; ${words} at the present value.`;
}

/** The curve: {element, point(place)}. It is drawn as wide as it is shown, so that its words can be read on a phone. */
function createChart(points, now) {
  const width = Math.min(stage.clientWidth - 40 || WIDEST, WIDEST);
  const values = points.map(({ value }) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const most = Math.max(...points.map((point) => point.categories), 1);
  const x = (value) => LEFT + ((value - low) / (high - low || 1)) * (width - LEFT - RIGHT);
  const y = (number) => HEIGHT - BOTTOM - (number / most) * (HEIGHT - TOP - BOTTOM);
  const corners = points.map((point) => `${x(point.value).toFixed(1)} ${y(point.categories).toFixed(1)}`);
  const line = `M${corners.join("L")}`;
  const floor = `L${x(values.at(-1)).toFixed(1)} ${y(0)}L${x(values[0]).toFixed(1)} ${y(0)}Z`;
  const marker = s("g", { class: "marker" }, s("path", { d: `M0 ${TOP}V${HEIGHT - BOTTOM}` }), s("circle", { r: 5.5 }));
  const element = s(
    "svg",
    {
      viewBox: `0 0 ${width} ${HEIGHT}`,
      class: "chart",
      role: "img",
      "aria-label": `Categories: ${points.map((point) => `${point.categories} at ${score(point.value)}`).join(", ")}`,
    },
    [0, 0.5, 1].map((part) => [
      s("path", { class: "grid", d: `M${LEFT} ${y(most * part)}H${width - RIGHT}` }),
      s("text", { x: LEFT - 8, y: y(most * part) + 4, class: "end" }, whole(Math.round(most * part))),
    ]),
    [low, (low + high) / 2, high].map((value) => s(
      "text",
      { x: x(value), y: HEIGHT - 12, class: "middle" },
      score(value),
    )),
    s("path", { class: "area", d: line + floor }),
    s("path", { class: "line", d: line }),
    s(
      "g",
      { class: "today" },
      s("path", { d: `M${x(points[now].value)} ${TOP}V${HEIGHT - BOTTOM}` }),
      s("text", { x: x(points[now].value) + 6, y: TOP + 10 }, "now"),
    ),
    marker,
  );
  return {
    element,
    point(place) {
      const { value, categories: number } = points[place];
      marker.setAttribute("transform", `translate(${x(value).toFixed(1)} 0)`);
      marker.lastElementChild.setAttribute("cy", y(number).toFixed(1));
    },
  };
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast(text); // no clipboard on plain HTTP: it can be marked here
  }
}

export function startWhatIf() {
  fill($("view-threshold"), stage);
  addView("threshold", { show });
}
