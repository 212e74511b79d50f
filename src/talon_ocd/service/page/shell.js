// The frame of the page: live state and numbers of the stream, colours, and the banner when the service is gone.

import { getStatus } from "./api.js";
import { openDialog } from "./dialog.js";
import { $, fill, h, write } from "./dom.js";
import { categories, images, score, whole } from "./format.js";
import { icon } from "./icons.js";
import { showKeys } from "./keys.js";
import { emit, on, statusNow } from "./store.js";
import { complain } from "./toast.js";
import { hasSession, signOut } from "./token.js";

const THEMES = { auto: ["auto", "as the system has it"], light: ["sun", "light"], dark: ["moon", "dark"] };
const LIVE = {
  live: "Live: changes show by themselves",
  connecting: "Connecting",
  lost: "The live connection is lost; trying again",
};

let pending = 0;
let extra = 0; // answers since the last status

function showStatus() {
  const status = statusNow();
  pending = 0;
  if (!status) return;
  write($("status-text"), `${images(status.answered + extra)}, ${categories(status.categories)}`);
}

/** At most a few times a second, however fast the stream is. */
const soon = () => (pending ||= setTimeout(showStatus, 250));

function drawTheme() {
  const [glyph, text] = THEMES[window.talonTheme.get()];
  const button = $("theme-button");
  fill(button, icon(glyph));
  button.title = `Colours: ${text}`;
  button.setAttribute("aria-label", `Colours: ${text}`);
}

async function showDetails() {
  try {
    emit("status", await getStatus());
  } catch (problem) {
    complain(problem);
    return;
  }
  openDialog("This stream", () => [
    h("dl.facts", {}, rows(statusNow()).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    hasSession() && h(
      "div.dialog-actions",
      {},
      h("button", { type: "button", onclick: () => signOut().catch(complain) }, "Sign out"),
    ),
  ].filter(Boolean), { kind: "medium" });
}

function rows(now) {
  const { verdicts = {}, guard = {} } = now;
  const rows = [
    ["images", whole(now.answered)],
    ["categories", `${whole(now.categories)}, ${whole(now.discovered)} discovered`],
    ["answers", ["known", "discovered", "new"].map((name) => `${whole(verdicts[name] ?? 0)} ${name}`).join(", ")],
    ["rule", `${now.rule}, threshold ${score(now.threshold)} (${now.unit})`],
    ["learns", now.adapt],
    ["encoder steps", whole(now.encoder_steps ?? 0)],
    ["guard", Object.entries(guard).map(([name, number]) => `${name.replaceAll("_", " ")} ${number}`).join(", ")],
    ["images a second", score(now.rate)],
    ["running for", duration(now.uptime)],
    ["model", now.model],
    ["stream", now.stream],
    ["version", now.version],
  ];
  return rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
}

function duration(seconds) {
  const minutes = Math.floor((seconds ?? 0) / 60);
  if (minutes < 60) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

function showBanner() {
  const banner = $("banner");
  if (!banner.hidden) return;
  banner.hidden = false;
  fill(
    banner,
    h("span", {}, "The service can't be reached. What you see may be old; nothing you did before is lost."),
    h("button", { type: "button", onclick: () => emit("retry") }, "Try again"),
  );
}

function hideBanner() {
  $("banner").hidden = true;
}

export function startShell() {
  $("keys-button").append(icon("keys"));
  $("keys-button").addEventListener("click", showKeys);
  $("status-button").addEventListener("click", showDetails);
  $("theme-button").addEventListener("click", () => {
    window.talonTheme.next();
    drawTheme();
  });
  drawTheme();
  on("status", () => {
    extra = 0;
    soon();
  });
  on("decision", () => {
    extra += 1;
    soon();
  });
  on("live", (state) => {
    $("live-dot").dataset.state = state;
    $("status-button").title = LIVE[state];
  });
  on("unreachable", showBanner);
  on("reachable", hideBanner);
  on("edited", () => getStatus().then((now) => emit("status", now), () => {}));
}
