// A decision explained: what it is, how sure, what it is nearest to, and what came second.

import { h, s } from "./dom.js";
import { difference, score } from "./format.js";
import { strip } from "./pictures.js";

/** Explain a decision of the service; `picture` is an element that shows the image. */
export function explain(decision, picture) {
  return h(
    "article.decision",
    { data: { verdict: decision.verdict } },
    h(
      "div.decision-picture",
      {},
      picture,
      decision.source && h("p.meta.source", { title: decision.source }, decision.source),
    ),
    h(
      "div.decision-text",
      {},
      h("h3", {}, h(`span.verdict.${decision.verdict}`, {}, decision.verdict), ...sentence(decision)),
      scale(decision),
      h("dl.facts", {}, facts(decision).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      h("div.nearest", {}, nearest(decision)),
    ),
  );
}

const isCategory = (id) => Number.isInteger(id) && id >= 0;

const link = (id, name) => (isCategory(id) ? h("a", { href: `#/category/${id}` }, name) : h("b", {}, name));

/** Is an image the first answer of a category that second thoughts had begun? It fits it. */
const wasBegun = ({ verdict, similarity, threshold }) => verdict === "new" && similarity >= threshold;

function sentence(decision) {
  const { verdict, resolved, name, learned, runner_up_name: second } = decision;
  if (verdict === "known") return ["This is ", link(resolved, name), ", a known class."];
  if (verdict === "discovered") return ["This belongs to ", link(resolved, name), ", discovered earlier."];
  if (wasBegun(decision)) {
    return learned
      ? ["This is the first image of ", link(resolved, name), ", which left a known class."]
      : ["This would be the first image of a category that left a known class."];
  }
  const nearest = second ? [` The nearest is ${second}.`] : [];
  if (!learned) return ["This fits nowhere: it would found a new category.", ...nearest];
  return ["This fitted nowhere and founded ", link(resolved, name), ".", ...nearest];
}

function facts(decision) {
  const { similarity, threshold, runner_up: second, runner_up_similarity: secondBest, verdict, unit } = decision;
  const founded = verdict === "new";
  const rows = [
    [founded ? `best fit (${unit})` : `fit (${unit})`, score(similarity)],
    ["threshold", score(threshold)],
    [similarity < threshold ? "short of the threshold by" : "above the threshold by", score(Math.abs(similarity - threshold))],
  ];
  if (!founded && second >= 0) rows.push(["ahead of the runner-up by", score(similarity - secondBest)]);
  return rows;
}

function nearest(decision) {
  const { verdict, name, resolved, runner_up: second, runner_up_name: secondName } = decision;
  const title = verdict === "new" && !wasBegun(decision) ? "Nearest, but not near enough: " : "Runner-up: ";
  return [
    verdict !== "new" && column("Looks like ", link(resolved, name), decision.exemplars),
    isCategory(second) && column(title, link(second, secondName), decision.runner_up_exemplars),
  ];
}

const column = (title, name, exemplars) => h("section", {}, h("h4", {}, title, name), strip(exemplars));

const WIDTH = 460;
const EDGE = 46;

/** A line with the threshold, the fit of the category and that of the runner-up. */
function scale({ similarity, threshold, runner_up: second, runner_up_similarity: secondBest, verdict, unit }) {
  const values = [similarity, threshold, ...(second >= 0 ? [secondBest] : [])].filter(Number.isFinite);
  if (!Number.isFinite(similarity)) return null; // there was nothing to compare with
  const reach = Math.max(...values.map((value) => Math.abs(value - threshold)), unit === "cosine" ? 0.05 : 1);
  const place = (value) => WIDTH / 2 + ((value - threshold) / reach) * (WIDTH / 2 - EDGE);
  const x = place(similarity);
  const marks = [
    s("rect", { x: WIDTH / 2, y: 28, width: WIDTH / 2 - 8, height: 8, rx: 4, class: "joins" }),
    s("rect", { x: 8, y: 28, width: WIDTH / 2 - 8, height: 8, rx: 4, class: "founds" }),
    s("path", { d: `M${WIDTH / 2} 20v24`, class: "threshold" }),
    s("text", { x: WIDTH / 2, y: 14, class: "label" }, "threshold"),
  ];
  if (second >= 0 && verdict !== "new" && Number.isFinite(secondBest)) {
    marks.push(
      s("circle", { cx: place(secondBest), cy: 32, r: 5, class: "second" }),
      s("text", { x: place(secondBest), y: 58, class: "label" }, score(secondBest)),
    );
  }
  marks.push(
    s("circle", { cx: x, cy: 32, r: 7, class: `first ${verdict}` }),
    s("text", { x, y: Math.abs(x - WIDTH / 2) > 50 ? 14 : 58, class: "label strong" }, score(similarity)),
  );
  const gap = difference(similarity - threshold);
  const text = `Fit ${score(similarity)}, threshold ${score(threshold)}, difference ${gap}`;
  return s("svg", { viewBox: `0 0 ${WIDTH} 64`, class: "scale", role: "img", "aria-label": text }, ...marks);
}
