// Numbers, times and counts as people read them.

const WHOLE = new Intl.NumberFormat();
const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const STEPS = [
  ["year", 31557600],
  ["month", 2629800],
  ["week", 604800],
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
];

export const whole = (number) => WHOLE.format(number);

export const images = (number) => (number === 1 ? "1 image" : `${whole(number)} images`);

export const categories = (number) => (number === 1 ? "1 category" : `${whole(number)} categories`);

/** A score with two decimals and a real minus sign. */
export function score(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toFixed(2).replace("-", "−");
}

/** The same with its sign, for differences. */
export const difference = (value) => (Number.isFinite(value) && value >= 0 ? `+${score(value)}` : score(value));

/** Seconds since 1970, or an ISO text, as a Date; null when there is none. */
function moment(time) {
  if (time === null || time === undefined) return null;
  return new Date(typeof time === "number" ? time * 1000 : time);
}

/** "3 hr. ago". */
export function ago(time) {
  const date = moment(time);
  if (!date) return "never";
  const seconds = (date.getTime() - Date.now()) / 1000;
  for (const [unit, length] of STEPS) {
    if (Math.abs(seconds) >= length) return RELATIVE.format(Math.round(seconds / length), unit);
  }
  return "just now";
}

/** The full date and time. */
export function exactly(time) {
  const date = moment(time);
  return date ? EXACT.format(date) : "";
}

/** "A", "A and B", "A, B and 3 more". */
export function listed(names, most = 3) {
  if (names.length <= 1) return names.join("");
  if (names.length > most) return `${names.slice(0, most - 1).join(", ")} and ${whole(names.length - most + 1)} more`;
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
