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
for (const [key, view, text] of [["1", "categories", "Categories"], ["2", "same", "Same?"], ["3", "map", "Map"], ["4", "threshold", "Threshold"], ["5", "try", "Try an image"]]) {
  onKey(key, "", text, () => go(view));
}
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
