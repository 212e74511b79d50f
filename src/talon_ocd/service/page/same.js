// "Are these the same?": pairs of categories that look alike, surest first, answered with Y, N and S.

import { getSuggestions, listMembers } from "./api.js";
import { mixBar } from "./cards.js";
import { $, fill, h, write } from "./dom.js";
import { merge, refuse } from "./edits.js";
import { images, score, whole } from "./format.js";
import { icon } from "./icons.js";
import { onKey } from "./keys.js";
import { strip } from "./pictures.js";
import { addView, currentView } from "./router.js";
import { empty, failed } from "./states.js";
import { on, remember } from "./store.js";

const LIMIT = 50;
const PICTURES = 8;

const stage = h("div.same");
const skipped = new Set();
let queue = [];
let into = null; // which of the two would keep its name
let busy = false;
let answered = 0;

const keyOf = ({ first, second }) => [first.id, second.id].sort((a, b) => a - b).join();

async function load() {
  if (!queue.length) fill(stage, h("div.pair.skeleton", { "aria-hidden": "true" }, h("i"), h("i")));
  try {
    const { items } = await getSuggestions(LIMIT);
    queue = items.filter((pair) => !skipped.has(keyOf(pair)));
    draw();
  } catch (problem) {
    if (currentView() === "same") fill(stage, failed(problem, load));
  }
}

function draw() {
  tally();
  const pair = queue[0];
  if (!pair) {
    const title = skipped.size ? "No more questions for now" : "No two categories look like one";
    const text = answered ? `${whole(answered)} answered.` : "As the stream goes on, questions may come.";
    const again = h("button", { type: "button", onclick: unskip }, `Show ${whole(skipped.size)} skipped`);
    fill(stage, empty(title, text, skipped.size > 0 && again));
    return;
  }
  const { first, second, score: value, unit } = pair;
  remember(first);
  remember(second);
  into = first.id; // the service names the one first that had better stay
  fill(
    stage,
    h("h1.question", {}, "Are these the same?", h("small", {}, `${unit} ${score(value)}`)),
    h(
      "div.pair",
      {},
      side(first),
      h(
        "button.turn.quiet",
        { type: "button", onclick: swap, title: "Swap which one stays (W)", "aria-label": "Swap which one stays" },
        icon("swap"),
      ),
      side(second),
    ),
    h("p.direction", { id: "same-direction", "aria-live": "polite" }),
    h(
      "div.answers",
      {},
      h("button.primary", { type: "button", onclick: same }, h("kbd", {}, "Y"), "Same: merge"),
      h("button", { type: "button", onclick: different }, h("kbd", {}, "N"), "Different"),
      h("button.quiet", { type: "button", onclick: skip }, h("kbd", {}, "S"), "Skip"),
    ),
  );
  direct();
}

function side(category) {
  const pictures = h("div", {}, strip(category.exemplars, PICTURES));
  if (category.count > category.exemplars.length) morePictures(category, pictures);
  return h(
    "section.side",
    { data: { id: category.id }, "aria-label": category.name },
    h("h2", {}, h("a", { href: `#/category/${category.id}` }, category.name)),
    h("p.meta", {}, `${category.kind}, ${images(category.count)}, #${category.id}`),
    pictures,
    mixBar(category.verdicts),
    h("p.stays", {}),
  );
}

/** Four exemplars are few to judge by: add some members. */
async function morePictures(category, place) {
  try {
    const { items } = await listMembers(category.id, { limit: PICTURES });
    if (place.isConnected) fill(
      place,
      strip([...new Set([...category.exemplars, ...items.map(({ index }) => index)])], PICTURES),
    );
  } catch {
    // the exemplars are there
  }
}

/** Say in words and on both sides which one goes into which. */
function direct() {
  const { first, second } = queue[0];
  const [source, target] = into === second.id ? [first, second] : [second, first];
  fill($("same-direction"), h("span", {}, source.name), icon("arrow"), "into ", h("b", {}, target.name));
  for (const element of stage.querySelectorAll(".side")) {
    const stays = Number(element.dataset.id) === into;
    element.classList.toggle("target", stays);
    write(element.querySelector(".stays"), stays ? "keeps its name" : "is merged into the other");
  }
}

function swap() {
  if (!queue.length) return;
  const { first, second } = queue[0];
  into = into === first.id ? second.id : first.id;
  direct();
}

/** Answer the first question; it stays if the service refuses. */
async function answer(act) {
  if (busy || !queue.length) return;
  busy = true;
  stage.classList.add("busy");
  const pair = queue[0];
  const done = await act(pair);
  busy = false;
  stage.classList.remove("busy");
  if (!done) return;
  answered += 1;
  queue = queue.filter((other) => other !== pair);
  draw();
  if (queue.length < 3) load();
}

const same = () => answer(({ first, second }) => merge([first.id, second.id], into));
const different = () => answer(({ first, second }) => refuse(first.id, second.id));

function skip() {
  if (busy || !queue.length) return;
  skipped.add(keyOf(queue.shift()));
  draw();
}

function unskip() {
  skipped.clear();
  load();
}

function tally() {
  const badge = $("same-tally");
  badge.hidden = queue.length === 0;
  write(badge, queue.length >= LIMIT ? `${LIMIT}+` : String(queue.length));
}

export function startSame() {
  fill($("view-same"), stage);
  onKey("Y", "same", "Same: merge them", same);
  onKey("N", "same", "Different: never ask again", different);
  onKey("S", "same", "Skip", skip);
  onKey("W", "same", "Swap which one stays", swap);
  on("edited", () => !busy && currentView() === "same" && load());
  on("signed-in", load);
  addView("same", { show: load });
  load(); // for the number in the navigation
}
