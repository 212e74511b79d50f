// Modal dialogs on the browser's own <dialog>: focus stays inside, Escape closes, focus returns to where it was.

import { $, h } from "./dom.js";
import { icon } from "./icons.js";

/**
 * Open a dialog. `build(close)` returns its content; `close(value)` ends it.
 * Resolves to the value, or to undefined when it was dismissed.
 */
export function openDialog(title, build, { kind = "", subtitle } = {}) {
  return new Promise((resolve) => {
    let result;
    const close = (value) => {
      result = value;
      element.close();
    };
    const heading = h("h2", { id: `dialog-title-${++number}` }, title, subtitle && h("small", {}, subtitle));
    const dismiss = h(
      "button.quiet.icon",
      { type: "button", "aria-label": "Close", onclick: () => close() },
      icon("close"),
    );
    const element = h(
      "dialog",
      { class: `dialog ${kind}`, "aria-labelledby": heading.id },
      h("div.dialog-head", {}, heading, dismiss),
    );
    element.append(...[build(close)].flat());
    element.addEventListener("click", (event) => {
      if (event.target === element && pressedOutside) close(); // on the backdrop
    });
    let pressedOutside = false;
    element.addEventListener("pointerdown", (event) => (pressedOutside = event.target === element));
    element.addEventListener("close", () => {
      const toasts = element.querySelector("#toasts");
      element.remove();
      if (toasts) (topDialog() ?? document.body).append(toasts);
      resolve(result);
    });
    document.body.append(element);
    element.showModal();
    element.append($("toasts")); // what lies outside of an open dialog can't be clicked
    (element.querySelector("[autofocus]") ?? element.querySelector(".primary"))?.focus({ preventScroll: true });
  });
}

let number = 0;

const topDialog = () => [...document.querySelectorAll("dialog[open]")].at(-1) ?? null;

export const dialogIsOpen = () => topDialog() !== null;

/** The row of buttons at the end of a dialog. */
export const actions = (...buttons) => h("div.dialog-actions", {}, ...buttons);
