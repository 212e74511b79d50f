// Builds elements. Data only ever becomes text nodes, attributes and properties: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "indeterminate", "tabIndex", "htmlFor"]);

/** h("button.quiet", {type: "button", onclick: f}, "Save"): an element with its classes, properties and children. */
export function h(selector, props = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  return filled(element, props, children);
}

/** The same for elements of SVG. */
export function s(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Replace everything inside an element. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** Set the text of an element if it is another one: selections and screen readers are left in peace otherwise. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const $ = (id) => document.getElementById(id);

/** Whether a key press belongs to a field somebody is typing in. */
export function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.matches("textarea, select")) return true;
  return target instanceof HTMLInputElement && !["checkbox", "radio", "range", "button"].includes(target.type);
}

export const prefersStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
