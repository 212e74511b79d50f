// The small dialog before a split: an optional name, and a look at what leaves.

import { actions, openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { split } from "./edits.js";
import { images } from "./format.js";
import { icon } from "./icons.js";
import { strip } from "./pictures.js";

/** Split images off a category. Resolves to the service's answer, or null. */
export async function askSplit(category, indices) {
  const name = await openDialog(`Split ${images(indices.length)} off ${category.name}`, (close) => {
    const field = h(
      "input.wide",
      {
        type: "text",
        maxlength: 200,
        placeholder: "Name (may be given later)",
        "aria-label": "Name of the new category",
        autofocus: true,
        autocomplete: "off",
      },
    );
    const submit = (event) => {
      event.preventDefault();
      close(field.value.trim());
    };
    return h(
      "form",
      { onsubmit: submit },
      strip(indices, 8),
      field,
      h("p.note", {}, "The new category learns from these images at once; later ones may find it."),
      actions(
        h("button", { type: "button", onclick: () => close() }, "Cancel"),
        h("button.primary", { type: "submit" }, icon("split"), "Split off"),
      ),
    );
  });
  return name === undefined ? null : split(category.id, indices, name);
}
