// Everything a person changes goes through here: one call, one message with Undo, and word to all parts of the page.

import * as api from "./api.js";
import { images, listed } from "./format.js";
import { emit, nameOf, remember } from "./store.js";
import { complain, toast } from "./toast.js";

const mine = []; // numbers of my edits that can be taken back, last one last
const undone = []; // numbers of my undo events, which can be taken back in turn

const made = new Set();
let under = Promise.resolve(); // until the edits that are under way have been answered

/** Whether an event of the ledger was made by this page. It may be told of before the answer comes, so this waits. */
export async function isMine(event) {
  await under;
  return made.has(event.seq);
}

/** Send an edit; events of the ledger wait until it is known which one is ours. */
function sent(request) {
  under = Promise.allSettled([under, request.then(({ event }) => event && made.add(event.seq))]);
  return request;
}

function settle(answer, message) {
  const { event, category } = answer;
  if (category) remember(category);
  emit("edited", answer);
  toast(message, { action: { label: "Undo", run: () => undo(event.seq) } });
}

/** Make an edit; resolves to the service's answer, or null if it was refused (which is then shown). */
async function perform(request, describe) {
  try {
    const answer = await sent(request);
    if (!answer.event) return answer; // it was so already
    mine.push(answer.event.seq);
    undone.length = 0;
    settle(answer, describe(answer));
    return answer;
  } catch (problem) {
    complain(problem);
    return null;
  }
}

/** Name a category. A name that is taken is thrown to the caller as a Problem with status 409: it offers a merge. */
export async function rename(id, name) {
  const before = nameOf(id);
  const request = api.patchCategory(id, { name });
  const taken = await request.then(
    () => null,
    (problem) => (problem.status === 409 && "existing" in problem.fields ? problem : null),
  );
  if (taken) throw taken;
  return perform(request, () => `${before} is now called ${name}`);
}

/** Give a category a name that is taken: it is merged into the one that has it. */
export const renameMerging = (id, name) => perform(
  api.patchCategory(id, { name, merge: true }),
  () => `Merged into ${name}`,
);

export function merge(ids, into) {
  const names = listed(ids.filter((id) => id !== into).map(nameOf));
  return perform(
    api.mergeCategories(ids.filter((id) => id !== into), into),
    (answer) => `Merged ${names} into ${answer.category?.name ?? nameOf(into)}`,
  );
}

export const hide = (id, hidden) => perform(
  api.patchCategory(id, { hidden }),
  () => `${nameOf(id)} is ${hidden ? "hidden" : "shown again"}`,
);

export function split(id, indices, name) {
  return perform(
    api.splitCategory(id, indices, name),
    ({ category }) => `Split ${images(indices.length)} off as ${category.name}`,
  );
}

export const move = (indices, to) => perform(
  api.moveImages(indices, to),
  () => `Moved ${images(indices.length)} to ${nameOf(to)}`,
);

export const confirm = (indices) => perform(api.confirmImages(indices), () => `Confirmed ${images(indices.length)}`);

export const reject = (indices) => perform(api.rejectImages(indices), () => `Took ${images(indices.length)} out`);

export function refuse(first, second) {
  return perform(api.refuseSuggestion(first, second), () => `${nameOf(first)} and ${nameOf(second)} stay apart`);
}

let last = Promise.resolve(); // undo and redo come one after another, however fast the keys are

/** Take back an event; without a number, my last edit, or else the ledger's last one. */
export function undo(seq) {
  last = last.then(() => takeBack(seq));
  return last;
}

/** Take back an undo. */
export function redo(seq) {
  last = last.then(() => bringBack(seq));
  return last;
}

async function takeBack(wanted) {
  await under; // an edit on its way is the one that is meant
  const seq = wanted ?? mine.at(-1);
  try {
    const answer = await sent(api.undoEvent(seq));
    forget(mine, answer.event.undoes ?? seq);
    undone.push(answer.event.seq);
    emit("edited", answer);
    const what = answer.undone?.summary ? `Undone: ${answer.undone.summary}` : "Undone";
    toast(what, { action: { label: "Redo", run: () => redo(answer.event.seq) } });
  } catch (problem) {
    if (problem.status !== 0) forget(mine, seq); // it can't be undone: the next Ctrl+Z takes the one before
    complain(problem);
  }
}

async function bringBack(wanted) {
  await under;
  const seq = wanted ?? undone.at(-1);
  if (seq === undefined) {
    toast("There is nothing to redo.");
    return;
  }
  try {
    const answer = await sent(api.undoEvent(seq));
    forget(undone, seq);
    mine.push(answer.event.seq);
    settle(answer, "Done again");
  } catch (problem) {
    if (problem.status !== 0) forget(undone, seq);
    complain(problem);
  }
}

function forget(list, seq) {
  const place = list.indexOf(seq);
  if (place >= 0) list.splice(place, 1);
}
