// What people and the stream have done, newest first. Any of people's facts can be taken back, in any order.

import { getHistory } from "./api.js";
import { openDialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { undo } from "./edits.js";
import { ago, exactly } from "./format.js";
import { icon } from "./icons.js";
import { onKey } from "./keys.js";
import { on } from "./store.js";
import { complain } from "./toast.js";

const PAGE = 60;
/** Kinds of events that can be taken back; the others only tell what the stream did. */
const FACTS = new Set(
  ["named", "merged", "hidden", "refused", "split", "moved", "confirmed", "rejected", "undone"],
);

let redraw = null; // while the panel is open

export function showHistory() {
  return openDialog(
    "History",
    () => {
      const list = h("ol.events", { "aria-label": "Events" });
      const more = h("button", { type: "button", hidden: true }, "Earlier");
      const people = h("input", { type: "checkbox", checked: true });
      let next;

      const load = async (before) => {
        try {
          const page = await getHistory({ limit: PAGE, before, everything: people.checked ? undefined : "true" });
          if (before === undefined) fill(list);
          list.append(...page.items.map(line));
          next = page.next ?? undefined;
          more.hidden = next === undefined;
          if (!list.children.length) fill(list, h("li.note", {}, "Nothing has been changed by people yet."));
        } catch (problem) {
          complain(problem);
        }
      };
      more.addEventListener("click", () => load(next));
      people.addEventListener("change", () => load());
      redraw = () => load();
      load();
      return [h("label.switch", {}, people, h("span", {}, "Only what people did")), list, more];
    },
    { kind: "side" },
  ).finally(() => (redraw = null));
}

function line(event) {
  const { seq, at, kind, actor, summary, undone } = event;
  const label = kind === "undone" ? "Redo" : "Undo";
  return h(
    "li.event",
    { data: { seq, kind }, class: undone ? "event taken-back" : "event" },
    h("p", {}, summary ?? kind),
    h("p.meta", { title: exactly(at) }, `${ago(at)}, ${actor}${undone ? ", taken back" : ""}`),
    FACTS.has(kind) && !undone && h(
      "button.link",
      { type: "button", "aria-label": `${label}: ${summary ?? kind}`, onclick: () => undo(seq) },
      icon("undo"),
      label,
    ),
  );
}

export function startHistory(button) {
  button.append(icon("history"));
  button.addEventListener("click", showHistory);
  onKey("H", "", "History", showHistory);
  on("edited", () => redraw?.());
  on("ledger", () => redraw?.());
}
