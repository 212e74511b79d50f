// One image of the stream, large, with its decision explained.

import { getDecision, imageUrl } from "./api.js";
import { explain } from "./decision.js";
import { openDialog } from "./dialog.js";
import { fill, h } from "./dom.js";

export function showImage(member) {
  return openDialog(
    `Image ${member.index}`,
    (close) => {
      const body = h("div.lightbox", { "aria-busy": "true" }, h("p.note", {}, "loading"));
      body.addEventListener("click", (event) => event.target.closest("a") && close());
      const picture = () => h("img.large", { src: imageUrl(member.index), alt: member.source });
      getDecision(member.index)
        .then((decision) => fill(body, explain(decision, picture())))
        .catch((problem) => fill(body, picture(), h("p.complaint", { role: "alert" }, problem.message)))
        .finally(() => body.setAttribute("aria-busy", "false"));
      return body;
    },
    { kind: "wide" },
  );
}
