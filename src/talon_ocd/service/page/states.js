// What stands where there is nothing to show, or where something went wrong.

import { h } from "./dom.js";

/** A calm word about emptiness, with whatever helps further. */
export const empty = (title, ...content) => h("div.empty", {}, h("h2", {}, title), ...content.map(paragraph));

/** What went wrong, and a button to try it again, or whatever helps further. */
export function failed(problem, retry, ...content) {
  return h(
    "div.empty",
    { role: "alert" },
    h("h2", {}, problem.title ?? "Something went wrong"),
    h("p", {}, problem.message),
    retry && h("button", { type: "button", onclick: () => retry() }, "Try again"),
    ...content,
  );
}

const paragraph = (part) => (typeof part === "string" ? h("p", {}, part) : part);
