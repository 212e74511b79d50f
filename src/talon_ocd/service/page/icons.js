// The icons: strokes on a 24 x 24 field, drawn in the colour of the text around them.

import { s } from "./dom.js";

const PATHS = {
  add: "M12 5v14M5 12h14",
  arrow: "M5 12h14M13 6l6 6-6 6",
  back: "M19 12H5M11 6l-6 6 6 6",
  auto: "M12 3a9 9 0 100 18 9 9 0 000-18zM12 3v18M12 8l6.5-3M12 13l8-3.5M12 18l7-3",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M8 8h11v12H8zM16 8V4H5v12h3",
  different: "M5 9h14M5 15h14M16 5L8 19",
  eye: "M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12zM12 9a3 3 0 100 6 3 3 0 000-6z",
  hide: "M3 10.5c2 3 5.2 5 9 5s7-2 9-5M5.5 13.5L4 16M9.5 15.3L9 18M14.5 15.3L15 18M18.5 13.5L20 16",
  history: "M3.5 12a8.5 8.5 0 108.5-8.5c-3 0-5.3 1.3-7 3.5M4 3v4.5h4.5M12 7.5V12l3 2",
  keys: "M3 6.5h18v11H3zM6.5 10h.01M10 10h.01M13.5 10h.01M17 10h.01M8 14h8",
  merge: "M5 5c0 5 3 7 8 7h6M5 19c0-5 3-7 8-7M15 8l4 4-4 4",
  moon: "M19.5 14A8 8 0 0110 4.5 8 8 0 1019.5 14z",
  move: "M4 7h9M4 12h6M4 17h9M15 12h6M18 9l3 3-3 3",
  pencil: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  search: "M10.5 4a6.5 6.5 0 100 13 6.5 6.5 0 000-13zM15.5 15.5L20 20",
  split: "M4 12h6c4 0 4-6 9-6M10 12c4 0 4 6 9 6M16 3l3 3-3 3M16 15l3 3-3 3",
  sun: "M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  swap: "M4 8h15M15 4l4 4-4 4M20 16H5M9 12l-4 4 4 4",
  undo: "M8 5L4 9l4 4M4 9h10a5.5 5.5 0 010 11h-3",
  upload: "M12 16V4M7 9l5-5 5 5M4 15v5h16v-5",
};

export function icon(name) {
  return s(
    "svg",
    { viewBox: "0 0 24 24", width: 18, height: 18, class: "glyph", "aria-hidden": "true", focusable: "false" },
    s(
      "path",
      {
        d: PATHS[name],
        fill: "none",
        stroke: "currentColor",
        "stroke-width": 1.7,
        "stroke-linecap": "round",
        "stroke-linejoin": "round",
      },
    ),
  );
}
