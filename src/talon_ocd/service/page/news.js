// The button that tells of newcomers which wait at the top of the grid, so that nothing moves unasked.

import { fill, h } from "./dom.js";
import { categories as counted } from "./format.js";

/** {element, add, addUnseen, disturb, clear, waiting, needsRefresh}; `open()` is called when a person wants to see. */
export function createNews(open) {
  const waiting = new Map(); // newcomers, by id
  let unseen = 0; // newcomers that were too many to be fetched one by one
  let disturbed = false; // whether others have changed what is shown
  const button = h("button.news", { type: "button", hidden: true, onclick: () => open() });
  const element = h("div.news-place", { "aria-live": "polite" }, button);

  function draw() {
    const number = waiting.size + unseen;
    button.hidden = number === 0 && !disturbed;
    fill(button, number ? `${counted(number).replace(" ", " new ")}: show` : "Others have changed something: show");
  }

  return {
    element,
    waiting: () => [...waiting.values()],
    /** Whether the newcomers alone don't tell how the list is now. */
    needsRefresh: () => unseen > 0 || disturbed,
    add(category) {
      waiting.set(category.id, category);
      draw();
    },
    addUnseen(number) {
      unseen += number;
      draw();
    },
    disturb() {
      disturbed = true;
      draw();
    },
    clear() {
      waiting.clear();
      unseen = 0;
      disturbed = false;
      draw();
    },
  };
}
