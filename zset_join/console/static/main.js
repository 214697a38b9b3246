// The page: a header, a navigation by hash or number keys, and one tab at a time.

import { html, render, useEffect, useMemo, useState } from "./vendored/preact-htm.js";
import { Charts } from "./charts.js";
import { Diff, Files, Keys, Letters, Options, Rows, Tail, Verify, Waiting } from "./panels.js";
import { Note, Trouble } from "./parts.js";
import { Plan } from "./plan.js";
import { ask, keepActionsToken, shownTime, withChanges, withEpochs } from "./store.js";

const TABS = [
  ["live", "Live"],
  ["rows", "Rows"],
  ["verify", "Verify"],
  ["keys", "Hot keys"],
  ["letters", "Dead letters"],
  ["waiting", "Waiting"],
  ["files", "Checkpoint"],
  ["options", "Views, options"],
  ["diff", "Changed query"],
];

function Page() {
  const [tab, setTab] = useState(tabOf());
  const [theme, turnTheme] = useTheme();
  const [overview, setOverview] = useState(null);
  const [failure, setFailure] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const [actions, setActions] = useState({});
  const tabs = TABS.filter(([name]) => name !== "diff" || (overview && overview.can.diff));
  const [live, setLive] = useState({ epochs: [], tail: [], connected: false });
  useEffect(() => {
    ask("actions").then(setActions, (error) => setFailure(error.message));
    const read = () => ask("overview").then((found) => (setOverview(found), setFailure(null)), (error) => setFailure(error.message));
    read();
    const timer = setInterval(read, 10000);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    const source = new EventSource("/api/events?after=-1");
    source.addEventListener("open", () => setLive((before) => ({ ...before, connected: true })));
    source.addEventListener("epochs", (event) => {
      const more = JSON.parse(event.data);
      setTrouble(null);
      setLive((before) => ({ connected: true, epochs: withEpochs(before.epochs, more.epochs), tail: withChanges(before.tail, more.changes) }));
    });
    source.addEventListener("trouble", (event) => setTrouble(JSON.parse(event.data).message));
    source.onerror = () => setLive((before) => ({ ...before, connected: false }));
    return () => source.close();
  }, []);
  useEffect(() => {
    const onHash = () => setTab(tabOf());
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      const chosen = tabs[Number(event.key) - 1];
      if (chosen) location.hash = chosen[0];
      if (event.key === "t") turnTheme();
    };
    addEventListener("hashchange", onHash);
    addEventListener("keydown", onKey);
    return () => (removeEventListener("hashchange", onHash), removeEventListener("keydown", onKey));
  }, [turnTheme, tabs.length]);
  const newest = live.epochs[live.epochs.length - 1] || null;
  const troubles = [...new Set([...(failure ? [failure] : []), ...(overview ? overview.trouble : []), ...(trouble ? [trouble] : [])])];
  const graph = useMemo(() => overview && overview.plan, [overview && JSON.stringify(overview.plan)]);
  return html`<header>
      <div class="row">
        <h1>zset-join <span class="quiet">console</span></h1>
        <button onClick=${turnTheme} title="key t">${theme === "dark" ? "light" : "dark"}</button>
      </div>
      <p class="status"><${State} overview=${overview} live=${live} />
        ${overview && html`<span class="name">${overview.name}</span>`}
        ${newest && html`<span>epoch ${newest.epoch}, ${shownTime(newest.at_us)}</span>`}</p>
      <nav aria-label="panels">${tabs.map(([name, title], at) => html`<a href=${`#${name}`} aria-current=${tab === name ? "page" : null} title=${`key ${at + 1}`}>${title}</a>`)}</nav>
    </header>
    <main>
      ${troubles.map((message) => html`<${Trouble} message=${message} />`)}
      ${overview ? html`<${Tab} tab=${tab} overview=${overview} graph=${graph} live=${live} newest=${newest} theme=${theme} actions=${actions} />` : html`<p>Reading…</p>`}
    </main>
    <footer><p>Keys: 1 to ${tabs.length} choose a panel, t the theme. ${Object.keys(actions).length ? "Actions are allowed." : "Nothing here changes the query."}</p></footer>`;
}

function Tab({ tab, overview, graph, live, newest, theme, actions }) {
  if (tab === "rows") return html`<${Rows} overview=${overview} place=${placeOf()} />`;
  if (tab === "diff") return html`<${Diff} />`;
  if (tab === "verify") return html`<${Verify} overview=${overview} />`;
  if (tab === "keys") return html`<${Keys} epochs=${live.epochs} />`;
  if (tab === "letters") return html`<${Letters} newest=${newest} actions=${actions} />`;
  if (tab === "waiting") return html`<${Waiting} newest=${newest} />`;
  if (tab === "files") return html`<${Files} overview=${overview} newest=${newest} />`;
  if (tab === "options") return html`<${Options} overview=${overview} newest=${newest} />`;
  return html`${graph ? html`<${Plan} graph=${graph} epochs=${live.epochs} />` : html`<${Note}>The plan cannot be read.</${Note}>`}
    <${Charts} epochs=${live.epochs} theme=${theme} />
    <${Tail} tail=${live.tail} />`;
}

function State({ overview, live }) {
  if (!overview) return html`<span class="pill">reading</span>`;
  if (overview.trouble.length) return html`<span class="pill bad">damaged</span>`;
  if (!live.connected) return html`<span class="pill bad">not connected</span>`;
  if (overview.kind === "pipeline in memory") return html`<span class="pill good">in memory</span>`;
  const state = overview.owner ? overview.owner.state : "never started";
  return html`<span class=${state === "running" ? "pill good" : "pill"}>${state === "unknown" ? "owner not seen from here" : state}</span>`;
}

function tabOf() {
  const name = location.hash.slice(1).split("/")[0];
  return TABS.some(([known]) => known === name) ? name : "live";
}

// What of a panel the address names, as the table in #rows/join_0_left; null where it names none.
function placeOf() {
  const place = location.hash.split("/")[1];
  return place ? decodeURIComponent(place) : null;
}

function useTheme() {
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const [theme, setTheme] = useState(localStorage.getItem("theme") || preferred);
  document.documentElement.dataset.theme = theme;
  const turn = () => {
    const next = theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", next);
    document.documentElement.dataset.theme = next;
    setTheme(next);
  };
  return [theme, turn];
}

const page = document.getElementById("page");
keepActionsToken();
page.replaceChildren();
render(html`<${Page} />`, page);
