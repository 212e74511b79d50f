// A window on a long grid: only the rows near the screen are elements, the others are room above and below.
// So ten thousand cards cost as much as a hundred. All rows have the height of the first.

const BEYOND = 5; // rows that are kept above and below the screen

/**
 * `list` is a CSS grid, `make(id)` gives the element of an id, `leave(id)` is told when it is gone.
 * Returns {ids, set(ids), update(), reveal(id)}.
 */
export function createWindow(list, make, leave) {
  let ids = [];
  let height = 0; // of a row with its gap
  const shown = new Map(); // elements by id, in their order
  let frame = 0;

  const columnsOf = () => getComputedStyle(list).gridTemplateColumns.split(" ").length;

  function measure() {
    const first = list.firstElementChild;
    if (first) height = first.getBoundingClientRect().height + (parseFloat(getComputedStyle(list).rowGap) || 0);
  }

  /** Which rows are near the screen, from and up to. */
  function span(rows) {
    if (!height) return [0, Math.min(rows, 2 * BEYOND)];
    const top = -list.getBoundingClientRect().top;
    const from = Math.floor(top / height) - BEYOND;
    const to = Math.ceil((top + innerHeight) / height) + BEYOND;
    const most = Math.max(rows - 1, 0);
    return [Math.min(Math.max(from, 0), most), Math.min(Math.max(to, 1), rows)];
  }

  function update() {
    frame = 0;
    if (!list.isConnected || list.closest("[hidden]")) return; // nothing can be measured
    if (!height && ids.length) place(0, Math.min(ids.length, 1));
    if (ids.length) measure();
    const columns = columnsOf();
    const rows = Math.ceil(ids.length / columns);
    const [from, to] = span(rows);
    place(from * columns, to * columns);
    list.style.paddingTop = `${from * height}px`;
    list.style.paddingBottom = `${Math.max(rows - to, 0) * height}px`;
  }

  /** Make the elements of a range the children of the list, touching as few as possible. */
  function place(from, to) {
    const wanted = ids.slice(from, to);
    const keep = new Set(wanted);
    for (const [id, element] of shown) {
      if (keep.has(id)) continue;
      element.remove();
      shown.delete(id);
      leave(id);
    }
    let next = list.firstElementChild;
    for (const id of wanted) {
      if (!shown.has(id)) shown.set(id, make(id));
      const element = shown.get(id);
      if (element === next) next = next.nextElementSibling;
      else list.insertBefore(element, next);
    }
  }

  const soon = () => (frame ||= requestAnimationFrame(update));
  addEventListener("scroll", soon, { passive: true });
  new ResizeObserver(soon).observe(list);

  return {
    ids: () => ids,
    set(fresh) {
      ids = fresh;
      update();
    },
    update,
    /** Bring an id onto the screen, and return its element. */
    reveal(id) {
      const row = Math.floor(ids.indexOf(id) / columnsOf());
      const top = list.getBoundingClientRect().top + scrollY + row * height;
      if (!shown.has(id)) scrollTo({ top: Math.max(top - innerHeight / 2, 0), behavior: "instant" });
      update();
      return shown.get(id);
    },
  };
}
