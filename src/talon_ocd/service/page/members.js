// The images of a category: thumbnails with fit, runner-up and margin, and what can be done with selected ones.

import { listMembers } from "./api.js";
import { fill, h } from "./dom.js";
import * as edits from "./edits.js";
import { ago, difference, exactly, images, score } from "./format.js";
import { icon } from "./icons.js";
import { showImage } from "./lightbox.js";
import { pickCategory } from "./picker.js";
import { thumbnail } from "./pictures.js";
import { rove } from "./roving.js";
import { askSplit } from "./split.js";
import { failed } from "./states.js";
import { complain } from "./toast.js";

const PAGE = 60;
const MOST_SKELETONS = 12;

/** The images of one category: {element, refresh(), selectAll(), clear(), close()}. */
export function createMembers(category) {
  const tiles = new Map(); // by index of the image
  const selected = new Set();
  const list = h("ul.tiles", { "aria-label": "Images" });
  const bar = h("div.image-actions", { role: "region", "aria-label": "Selected images" });
  const sentinel = h("div.sentinel");
  const note = h("div");
  const control = new AbortController();
  let next = null;
  let loading = false;
  let anchor = null;
  const roving = rove(list, "li.tile", "button.picture");
  const observer = new IntersectionObserver(
    (entries) => entries.at(-1).isIntersecting && more(),
    { rootMargin: "700px" },
  );

  async function load(cursor, limit = PAGE) {
    loading = true;
    try {
      return await listMembers(category.id, { limit, cursor }, control.signal);
    } finally {
      loading = false;
    }
  }

  /** Load the first images; if that fails, the place where they belong says so. */
  async function begin() {
    fill(note);
    fill(list, skeletons(Math.min(category.count, MOST_SKELETONS)));
    list.setAttribute("aria-busy", "true");
    try {
      const page = await load();
      fill(list);
      take(page);
    } catch (problem) {
      fill(list);
      if (problem.name !== "AbortError") fill(note, failed(problem, begin));
    }
    list.setAttribute("aria-busy", "false");
  }

  function take(page) {
    for (const member of page.items) if (!tiles.has(member.index)) list.append(add(member));
    next = page.next;
    fill(note, tiles.size === 0 && h("p.empty", {}, "No image is at home here."));
    roving.reset();
    observer.disconnect();
    observer.observe(sentinel); // tells again, if the end is still near
  }

  async function more() {
    if (next === null || loading) return;
    try {
      take(await load(next));
    } catch (problem) {
      complain(problem);
    }
  }

  async function refresh() {
    try {
      const page = await load(undefined, Math.min(Math.max(tiles.size, PAGE), 200));
      tiles.clear();
      fill(list);
      take(page);
      setSelected([...selected].filter((index) => tiles.has(index)));
    } catch (problem) {
      complain(problem);
    }
  }

  function add(member) {
    const tile = createTile(member);
    tiles.set(member.index, { ...tile, member });
    return tile.element;
  }

  function setSelected(indices) {
    selected.clear();
    for (const index of indices) selected.add(index);
    for (const [index, tile] of tiles) {
      tile.tick.checked = selected.has(index);
      tile.element.classList.toggle("chosen", selected.has(index));
    }
    drawBar();
  }

  function toggle(index, range) {
    const all = [...tiles.keys()];
    const [from, to] = [all.indexOf(anchor), all.indexOf(index)].sort((a, b) => a - b);
    const value = !selected.has(index);
    for (const one of range && anchor !== null ? all.slice(Math.max(from, 0), to + 1) : [index]) {
      if (value) selected.add(one);
      else selected.delete(one);
    }
    anchor = index;
    setSelected([...selected]);
  }

  const act = (action) => async () => {
    if (await action([...selected])) setSelected([]);
  };

  async function moveTo(indices) {
    const target = await pickCategory(`Move ${images(indices.length)} to`, [category.id]);
    return target && edits.move(indices, target.id);
  }

  function drawBar() {
    bar.hidden = selected.size === 0;
    const button = (glyph, text, title, action) =>
      h(
        `button${glyph === "split" ? ".primary" : ""}`,
        { type: "button", title, onclick: act(action) },
        icon(glyph),
        text,
      );
    fill(
      bar,
      h("b", { "aria-live": "polite" }, `${images(selected.size)} selected`),
      button("split", "Split off…", "Make a new category of them", (indices) => askSplit(category, indices)),
      button("move", "Move…", "Move them to another category", moveTo),
      button("check", "Confirm", "They do belong here", edits.confirm),
      button("close", "Reject", "They don't belong here", edits.reject),
      h("button.quiet", { type: "button", onclick: () => setSelected([]) }, "Clear"),
    );
  }

  list.addEventListener("click", (event) => {
    const index = Number(event.target.closest("li.tile")?.dataset.index);
    const pressed = event.target.closest("button.picture") !== null;
    if (event.target instanceof HTMLInputElement || (pressed && selected.size)) toggle(index, event.shiftKey);
    else if (pressed) showImage(tiles.get(index).member);
  });
  list.addEventListener("keydown", (event) => {
    if (event.key !== " " || !event.target.matches("button.picture")) return;
    event.preventDefault(); // it would press the button
    toggle(Number(event.target.closest("li.tile").dataset.index), event.shiftKey);
  });

  drawBar();
  begin();
  return {
    element: h("div", {}, bar, list, note, sentinel),
    refresh,
    selectAll: () => setSelected([...tiles.keys()]),
    clear: () => selected.size > 0 && (setSelected([]), true),
    close() {
      control.abort();
      observer.disconnect();
    },
  };
}

/** Grey shapes of images, while the first ones are on their way. */
const skeletons = (number) => Array.from({ length: number }, () => h("li.skeleton", { "aria-hidden": "true" }, h("i")));

function createTile(member) {
  const { index, verdict, similarity, runner_up, runner_up_name, runner_up_similarity } = member;
  const tick = h("input", { type: "checkbox", tabIndex: -1, "aria-label": `Select image ${index}` });
  const second = runner_up >= 0 ? `then ${runner_up_name} ${score(runner_up_similarity)}` : "no runner-up";
  const label = `Image ${index}, ${verdict}, fit ${score(similarity)}, ${second}`;
  const picture = h("button.picture", { type: "button", tabIndex: -1, "aria-label": label }, thumbnail(index));
  const element = h(
    "li.tile",
    { data: { index: member.index } },
    picture,
    h("label.pick", {}, tick),
    h(
      "p.fit",
      {},
      h(`i.dot.${member.verdict}`, { title: member.verdict }),
      h("b", {}, score(member.similarity)),
      h("small", { title: "margin to the threshold" }, difference(member.margin)),
    ),
    h("p.meta", { title: second }, second),
    h("p.meta", { title: `${member.source}, ${exactly(member.at)}` }, ago(member.at)),
  );
  return { element, tick };
}
