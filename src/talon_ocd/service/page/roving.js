// One tab stop for a whole grid; the arrow keys walk inside it. Used by the cards and by the images of a category.

/**
 * `item` selects the items of the container, `target` what takes the focus inside one. Controls inside the present item
 * can be reached by Tab, those of the others can't. `neighbour(element, step)` finds the item so many steps further.
 */
export function rove(container, item, target, neighbour = neighbourIn(container, item)) {
  let present = null;

  function makePresent(element) {
    if (present && present !== element) setTabs(present, -1);
    present = element;
    if (present) setTabs(present, 0);
  }

  function setTabs(element, value) {
    for (const control of element.querySelectorAll("a, button, input")) control.tabIndex = value;
  }

  function walk(event) {
    const step = stepOf(event.key, columnsOf(container));
    if (step === null || !event.target.matches(target) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const focus = neighbour(event.target.closest(item), step)?.querySelector(target);
    focus?.focus({ preventScroll: true });
    focus?.scrollIntoView({ block: "nearest" });
  }

  container.addEventListener("keydown", walk);
  container.addEventListener("focusin", (event) => {
    const element = event.target.closest(item);
    if (element) makePresent(element);
  });
  return {
    /** After the items have changed: keep the tab stop, or put it on the first. */
    reset() {
      if (!present?.isConnected) makePresent(container.querySelector(item));
    },
    isFocused: () => container.contains(document.activeElement),
  };
}

/** The place so many steps from another one, inside of a list. */
export const placeAfter = (place, step, length) => Math.min(Math.max(place + step, 0), length - 1);

function neighbourIn(container, item) {
  return (element, step) => {
    const all = [...container.querySelectorAll(item)];
    return all[placeAfter(all.indexOf(element), step, all.length)];
  };
}

const columnsOf = (container) => getComputedStyle(container).gridTemplateColumns.split(" ").length;

function stepOf(key, columns) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity };
  return key in steps ? steps[key] : null;
}
