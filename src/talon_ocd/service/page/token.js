// Asks for the token when the service wants one. It is exchanged for an HttpOnly cookie and never kept by the page.

import { closeSession, onTokenWanted, openSession } from "./api.js";
import { actions, openDialog } from "./dialog.js";
import { h, write } from "./dom.js";
import { emit } from "./store.js";

const KEY = "talon.signed-in";

/** Whether this browser has signed in: only then is there something to sign out of. */
export function hasSession() {
  try {
    return localStorage.getItem(KEY) === "yes";
  } catch {
    return false;
  }
}

function noteSession(open) {
  try {
    if (open) localStorage.setItem(KEY, "yes");
    else localStorage.removeItem(KEY);
  } catch {
    // the button to sign out is missing then; the cookie ends with the browser
  }
}

async function ask() {
  const signedIn = await openDialog("This service wants a token", (close) => {
    const field = h(
      "input.wide",
      {
        type: "password",
        name: "token",
        autocomplete: "current-password",
        required: true,
        autofocus: true,
        "aria-label": "Token",
      },
    );
    const complaint = h("p.complaint", { role: "alert" });
    const submit = async (event) => {
      event.preventDefault();
      try {
        await openSession(field.value.trim());
        noteSession(true);
        close(true);
      } catch (problem) {
        write(complaint, problem.status === 401 ? "This is not the token." : problem.message);
        field.select();
      }
    };
    return h(
      "form",
      { onsubmit: submit },
      h(
        "p.note",
        {},
        "It is the one that ",
        h("code", {}, "talon serve --token"),
        " was started with, or TALON_TOKEN. It is sent once, for a session cookie that scripts can't read.",
      ),
      field,
      complaint,
      actions(h("button.primary", { type: "submit" }, "Sign in")),
    );
  });
  if (signedIn) emit("signed-in");
  return signedIn === true;
}

export async function signOut() {
  await closeSession();
  noteSession(false);
  location.reload();
}

export function startToken() {
  onTokenWanted(ask);
}
