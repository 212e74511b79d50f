// Try an image: drop it anywhere, choose it or paste it, and see its decision explained. Learns only if told to.

import { decide, getDecision } from "./api.js";
import { explain } from "./decision.js";
import { $, fill, h, write } from "./dom.js";
import { whole } from "./format.js";
import { icon } from "./icons.js";
import { addView, currentView, go } from "./router.js";

const MOST_SHOWN = 40;

const results = h("div.results", { "aria-live": "polite" });
const progress = h("p.note.progress", { role: "status" });
const learn = h("input", { type: "checkbox", id: "learn" });
const waiting = [];
let control = null; // of the run that is going on

/** Decide about files, one after another, so that their order is that of the drop. */
async function take(files) {
  const pictures = [...files].filter((file) => file.type.startsWith("image/") || file.type === "");
  const others = files.length - pictures.length;
  if (currentView() !== "try") go("try");
  if (others) add(h("p.complaint", { role: "alert" }, `Files that are no images were left out: ${whole(others)}.`));
  waiting.push(...pictures.map((file) => ({ file, learns: learn.checked })));
  if (control || !waiting.length) return;
  control = new AbortController();
  let done = 0;
  while (waiting.length && !control.signal.aborted) {
    showProgress(done);
    await one(waiting.shift());
    done += 1;
  }
  waiting.length = 0;
  control = null;
  write(progress, "");
}

function showProgress(done) {
  const total = done + waiting.length;
  fill(
    progress,
    total > 1 ? `${whole(done + 1)} of ${whole(total)} ` : "deciding ",
    total > 1 && h("button.link", { type: "button", onclick: () => control?.abort() }, "Stop"),
  );
}

async function one({ file, learns }) {
  const address = URL.createObjectURL(file);
  const picture = h("img.large", { src: address, alt: file.name || "the image" });
  try {
    const decision = await decide(file, learns, control.signal);
    // What was learned is read once more, with what is nearest; it is decided even if that can't be had.
    const told = decision.learned ? await getDecision(decision.index).catch(() => decision) : decision;
    add(explain(told, picture));
  } catch (problem) {
    if (problem.name === "AbortError") return;
    add(h(
      "article.decision.failed",
      { role: "alert" },
      h("div.decision-picture", {}, picture),
      h(
        "div.decision-text",
        {},
        h("h3", {}, problem.title ?? "It could not be decided"),
        h("p", {}, problem.message),
        h("p.meta.source", {}, file.name),
      ),
    ));
  }
}

function add(element) {
  results.prepend(element);
  while (results.children.length > MOST_SHOWN) {
    const last = results.lastElementChild;
    const address = last.querySelector("img.large")?.src;
    if (address) URL.revokeObjectURL(address);
    last.remove();
  }
}

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/** Files may be dropped anywhere on the page. */
function listenToDrops() {
  const zone = $("dropzone");
  let depth = 0; // enter and leave also come from every element inside
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    depth += 1;
    zone.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!hasFiles(event)) return;
    depth = Math.max(depth - 1, 0);
    zone.hidden = depth === 0;
  });
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    depth = 0;
    zone.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (files.length) take(files);
  });
}

export function startDrop() {
  const chooser = h("input", { type: "file", accept: "image/*", multiple: true, id: "chooser", class: "unseen" });
  chooser.addEventListener("change", () => {
    take(chooser.files);
    chooser.value = "";
  });
  fill(
    $("view-try"),
    h("h1", {}, "Try an image"),
    h(
      "label.drop-target",
      { htmlFor: "chooser" },
      icon("upload"),
      h("b", {}, "Drop images here, choose or paste them"),
      h("span.note", {}, "They may be dropped anywhere on this page."),
    ),
    chooser,
    h(
      "label.switch",
      { htmlFor: "learn" },
      learn,
      h("span", {}, "Learn from it"),
      h("small.note", {}, "Off: only a look. On: it becomes part of the stream, and may found a category."),
    ),
    progress,
    results,
  );
  listenToDrops();
  addView("try", { show() {} });
}
