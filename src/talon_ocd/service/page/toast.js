// Short messages at the foot of the page. They wait while they are pointed at or focused, and may offer an action.

import { $, h } from "./dom.js";
import { icon } from "./icons.js";

const SECONDS = 8;
const MOST = 3;

/** Show a message; `action` is {label, run}. Returns a function that takes it away. */
export function toast(message, { action, kind = "info" } = {}) {
  const close = () => {
    clearTimeout(timer);
    element.remove();
  };
  const act = () => {
    close();
    action.run();
  };
  const element = h(
    `div.toast.${kind}`,
    { role: kind === "error" ? "alert" : undefined },
    h("span", {}, message),
    action && h("button.link", { type: "button", onclick: act }, action.label),
    h("button.quiet.icon", { type: "button", "aria-label": "Dismiss", onclick: close }, icon("close")),
  );
  let timer = setTimeout(close, SECONDS * 1000);
  const wait = () => clearTimeout(timer);
  const resume = () => {
    clearTimeout(timer);
    timer = setTimeout(close, SECONDS * 1000);
  };
  for (const name of ["pointerenter", "focusin"]) element.addEventListener(name, wait);
  for (const name of ["pointerleave", "focusout"]) element.addEventListener(name, resume);
  const region = $("toasts");
  while (region.children.length >= MOST) region.firstElementChild.remove();
  region.append(element);
  return close;
}

/** Show what went wrong. */
export function complain(error) {
  if (error.name === "AbortError" || error.status === 0) return; // the banner tells of an unreachable service
  toast(error.name === "Problem" ? error.message : `The page has stumbled: ${error.message}`, { kind: "error" });
  if (error.name !== "Problem") console.error(error);
}
