// Thumbnails: mosaics of exemplars, single pictures, and what stands in for a picture that is not kept.

import { thumbnailUrl } from "./api.js";
import { fill, h } from "./dom.js";

/** One thumbnail; loaded only when it comes near the window. */
export function thumbnail(index, alt = "") {
  return h("img.thumb", { src: thumbnailUrl(index), alt, loading: "lazy", decoding: "async", draggable: "false" });
}

/** Up to four exemplars in one frame. */
export function mosaic(exemplars = []) {
  const frame = h("span.mosaic");
  setMosaic(frame, exemplars);
  return frame;
}

/** Change the pictures of a mosaic, if they are others. */
export function setMosaic(frame, exemplars = []) {
  const shown = exemplars.slice(0, 4);
  const key = shown.join();
  if (frame.dataset.key === key) return;
  frame.dataset.key = key;
  frame.dataset.number = String(shown.length);
  fill(frame, shown.length ? shown.map((index) => thumbnail(index)) : h("span.blank", {}, "no image yet"));
}

/** A row of thumbnails, for comparing. */
export function strip(exemplars = [], most = 4) {
  if (!exemplars.length) return h("p.note", {}, "No picture is kept.");
  return h("div.strip", {}, exemplars.slice(0, most).map((index) => thumbnail(index)));
}

const RETRIES = 2;
const WAIT = 1500;

/** A picture that can't be loaded leaves a quiet square instead of a torn one. */
function lost({ target }) {
  if (!(target instanceof HTMLImageElement)) return;
  const tries = Number(target.dataset.tries ?? 0);
  target.classList.add("missing");
  if (!target.classList.contains("thumb") || tries >= RETRIES) return;
  target.dataset.tries = String(tries + 1);
  const again = () => {
    target.src = target.getAttribute("src");
  };
  setTimeout(again, WAIT * 2 ** tries); // scrolling fast may have been too much for the service's rate limit
}

function found({ target }) {
  if (target instanceof HTMLImageElement) target.classList.remove("missing");
}

export function startPictures() {
  document.addEventListener("error", lost, true);
  document.addEventListener("load", found, true);
}
