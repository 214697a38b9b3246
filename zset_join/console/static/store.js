// What is known of the query: the answers of /api, and epochs as they are committed.

export const MOST_EPOCHS = 1000;
export const MOST_TAIL_ROWS = 400;

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  const answer = await fetch(`/api/${path}${text ? "?" + text : ""}`);
  if (answer.status === 401) throw new Error("This page is no longer let in. Open the address that the console prints.");
  if (answer.status !== 200 && answer.status !== 422) throw new Error(`The console answered with status ${answer.status}.`);
  const found = await answer.json();
  if (answer.status === 422) throw new Error(found.message);
  return found;
}

// Take an action. Its token was in the address that the console opened; a page without it is refused.
export async function act(name) {
  const answer = await fetch(`/api/actions/${encodeURIComponent(name)}`, { method: "POST", headers: { "X-CSRF-Token": localStorage.getItem("actions") || "" } });
  if (answer.status !== 200 && answer.status !== 422) throw new Error(await answer.text());
  const found = await answer.json();
  if (answer.status === 422) throw new Error(found.message);
  return found.done;
}

// Keep the token of actions, where the address has one, out of the address.
export function keepActionsToken() {
  if (!location.hash.startsWith("#actions=")) return;
  localStorage.setItem("actions", location.hash.slice("#actions=".length));
  history.replaceState(null, "", "/");
}

// Add epochs to those known, oldest first; an epoch that is given again replaces what was known of it.
export function withEpochs(known, more) {
  const byNumber = new Map(known.map((one) => [one.epoch, one]));
  for (const one of more) byNumber.set(one.epoch, one);
  return [...byNumber.values()].sort((one, other) => one.epoch - other.epoch).slice(-MOST_EPOCHS);
}

// Add rows of the changelog to the tail, newest first.
export function withChanges(tail, changes) {
  const more = changes.filter((one) => !tail.some((kept) => kept.epoch === one.epoch && kept.view === one.view));
  const kept = [];
  let left = MOST_TAIL_ROWS;
  for (const one of [...more.reverse(), ...tail]) {
    if (left <= 0) break;
    kept.push(one);
    left -= one.rows.length;
  }
  return kept;
}

export function sum(numbers) {
  return Object.values(numbers).reduce((total, one) => total + one, 0);
}

// Seconds between an epoch and the one before it; null where that is not known.
export function gapSeconds(epochs, at) {
  const [before, here] = [epochs[at - 1], epochs[at]];
  if (!before || before.epoch !== here.epoch - 1 || before.at_us === null || here.at_us === null) return null;
  const seconds = (here.at_us - before.at_us) / 1e6;
  return seconds > 0 ? seconds : null;
}

export function epochSeconds(epoch) {
  const parts = Object.values(epoch.seconds);
  return parts.length ? sum(epoch.seconds) : null;
}

// The newest numbers of every stage: one that was idle in the last epoch has those of the last one in which it was not.
export function newestByStage(epochs) {
  const found = { stages: {}, remembers: {}, state_bytes: {}, watermarks: {}, held_by: {} };
  for (const one of epochs) {
    for (const name of Object.keys(found)) Object.assign(found[name], one[name]);
  }
  const last = epochs[epochs.length - 1];
  return { ...found, last: last || null, gap: last ? gapSeconds(epochs, epochs.length - 1) : null };
}

export function shownNumber(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? value.toFixed(0) : size >= 1 ? value.toFixed(1) : value.toPrecision(2);
}

export function shownBytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function shownSeconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(value < 8640000 ? 1 : 0)} days`;
}

export function shownTime(us) {
  if (us === null || us === undefined) return "–";
  const time = new Date(us / 1000);
  return Number.isNaN(time.getTime()) ? String(us) : time.toISOString().replace("T", " ").replace(/\.000Z$/, "Z");
}
