// Starts the page: every part registers its views, keys and listeners, then the address says what is shown.

import { getStatus } from "./api.js";
import { startDetail } from "./detail.js";
import { $ } from "./dom.js";
import { startDrop } from "./drop.js";
import { redo, undo } from "./edits.js";
import { startGrid } from "./grid.js";
import { startHistory } from "./history.js";
import { onKey, startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startMap } from "./map.js";
import { startPictures } from "./pictures.js";
import { go, startRouter } from "./router.js";
import { startSame } from "./same.js";
import { startShell } from "./shell.js";
import { emit } from "./store.js";
import { complain } from "./toast.js";
import { startToken } from "./token.js";
import { startWhatIf } from "./whatif.js";

startToken();
startPictures();
startShell();
startKeys();
const VIEWS = { categories: "Categories", same: "Same?", map: "Map", threshold: "Threshold", try: "Try an image" };
Object.entries(VIEWS).forEach(([view, text], place) => onKey(String(place + 1), "", text, () => go(view)));
onKey("Ctrl+Z", "", "Undo my last edit", () => undo());
onKey("Ctrl+Shift+Z", "", "Redo", () => redo());
startHistory($("history-button"));
startGrid();
startDetail();
startSame();
startMap();
startWhatIf();
startDrop();
startRouter();

getStatus()
  .then((status) => emit("status", status))
  .catch(complain)
  .finally(startLive);
