// Naming by typing, in place: Enter saves, Escape cancels. A name that is taken is offered as a merge.

import { getCategory } from "./api.js";
import { stillCard } from "./cards.js";
import { actions, openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { rename, renameMerging } from "./edits.js";
import { icon } from "./icons.js";
import { hasName, remember } from "./store.js";

/** Put a field in the place of a name's button until the name is saved or given up. Resolves when it is over. */
export function editName(button, category) {
  return new Promise((resolve) => {
    let over = false;
    const field = h(
      "input.name-field",
      {
        type: "text",
        maxlength: 200,
        value: hasName(category) ? category.name : "",
        placeholder: category.name,
        "aria-label": `Name of ${category.name}`,
        autocomplete: "off",
        spellcheck: "false",
      },
    );

    const finish = (save, refocus) => {
      if (over) return;
      over = true;
      const name = field.value.trim();
      field.replaceWith(button);
      if (refocus) (button.closest(".card")?.querySelector("a.open") ?? button).focus();
      resolve(save && name && name !== category.name ? saveName(category, name) : null);
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.isComposing) return; // Enter ends a composed character, not the name
      if (event.key === "Enter") finish(true, true);
      if (event.key === "Escape") {
        event.preventDefault();
        finish(false, true);
      }
    });
    field.addEventListener("blur", () => finish(true, false));
    button.replaceWith(field);
    field.focus();
    field.select();
  });
}

/** Save a name; asks when it is taken. Resolves to the service's answer, or null. */
export async function saveName(category, name) {
  try {
    return await rename(category.id, name);
  } catch (problem) {
    return (await offerMerge(category, name, problem.fields)) ? renameMerging(category.id, name) : null;
  }
}

async function offerMerge(category, name, { existing, existing_name }) {
  const other = await getCategory(existing).then(remember, () => null);
  return openDialog(
    "This name is taken",
    (close) => [
      h("p", {}, "There is a category called ", h("b", {}, existing_name ?? name), " already. Are they the same?"),
      h("div.versus", {}, stillCard(category), h("span.versus-arrow", {}, icon("arrow")), other && stillCard(other)),
      h("p.note", {}, "Merging loses nothing: the old number stays valid, and it can be undone."),
      actions(
        h("button", { type: "button", onclick: () => close(false) }, "Choose another name"),
        h(
          "button.primary",
          { type: "button", onclick: () => close(true) },
          icon("merge"),
          `Merge into ${existing_name ?? name}`,
        ),
      ),
    ],
    { kind: "medium" },
  );
}
