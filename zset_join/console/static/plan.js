// The plan as a graph: nodes coloured by a metric, rows per second on edges, a click shows what a stage does and remembers.

import { layout, Graph } from "./vendored/dagre.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendored/preact-htm.js";
import { Facts, Note } from "./parts.js";
import { newestByStage, shownBytes, shownNumber, shownSeconds, shownTime } from "./store.js";

const WIDTH = 208;
const HEIGHT = 66;
const SMALLEST = 0.7; // a wide plan is shrunk to the page, to this part of its size; wider ones scroll
const METRICS = {
  seconds: ["seconds", shownSeconds],
  bytes: ["state bytes", shownBytes],
  rows: ["rows in and out", shownNumber],
  lag: ["watermark lag", shownSeconds],
};

export function Plan({ graph, epochs }) {
  const [metric, setMetric] = useState("seconds");
  const [chosen, setChosen] = useState(null);
  const box = useRef(null);
  const isNarrow = useNarrow(box);
  const placed = useMemo(() => arranged(graph, isNarrow), [graph, isNarrow]);
  const newest = newestByStage(epochs);
  const values = Object.fromEntries(graph.nodes.map((node) => [node.id, valueOf(node, metric, newest)]));
  const most = Math.max(0, ...Object.values(values).filter((one) => one !== null));
  const node = graph.nodes.find((one) => one.id === chosen) || null;
  return html`<section aria-labelledby="plan-title" ref=${box}>
    <div class="row">
      <h2 id="plan-title">Plan</h2>
      <label>colour by <select value=${metric} onChange=${(event) => setMetric(event.target.value)}>
        ${Object.entries(METRICS).map(([name, [title]]) => html`<option value=${name}>${title}</option>`)}
      </select></label>
    </div>
    <div class="scroll graph" role="region" tabindex="0" aria-label="graph of the plan">
      <svg width=${placed.width} style=${`min-width: ${Math.round(placed.width * SMALLEST)}px`} viewBox=${`0 0 ${placed.width} ${placed.height}`} role="group" aria-label="plan">
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" class="arrow" /></marker></defs>
        ${placed.edges.map((edge) => html`<${Edge} edge=${edge} />`)}
        ${placed.edges.map((edge) => html`<${Flow} edge=${edge} text=${flowOf(edge, graph, newest)} />`)}
        ${placed.nodes.map((one) => html`<${Node} place=${one} node=${one.node} heat=${heatOf(values[one.node.id], most)}
          value=${shownValue(one.node, values[one.node.id], metric, newest)}
          isChosen=${chosen === one.node.id} choose=${() => setChosen(chosen === one.node.id ? null : one.node.id)} />`)}
      </svg>
    </div>
    ${node ? html`<${Details} node=${node} graph=${graph} newest=${newest} close=${() => setChosen(null)} />`
      : html`<${Note}>Choose a node to see what it does and remembers, its tables and its batch SQL. Edges show rows per second of the newest epoch.</${Note}>`}
  </section>`;
}

function Node({ place, node, heat, value, isChosen, choose }) {
  const onKey = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose();
    }
  };
  const lines = [
    cut(node.kind === "stage" ? node.name : `${node.kind} ${node.name}`, 23),
    cut(node.kind === "stage" ? node.title : node.columns.join(", "), 28),
    cut(value, 28),
  ];
  const [left, top] = [place.x - WIDTH / 2, place.y - HEIGHT / 2];
  return html`<g class=${`node ${node.kind} heat-${heat} ${isChosen ? "chosen" : ""}`} tabindex="0" role="button" aria-pressed=${isChosen ? "true" : "false"} onClick=${choose} onKeyDown=${onKey}>
    <rect x=${left} y=${top} width=${WIDTH} height=${HEIGHT} rx=${node.kind === "stage" ? 6 : 20} />
    <text x=${left + 14} y=${top + 20} class="name">${lines[0]}${" "}</text>
    <text x=${left + 14} y=${top + 38} class="title">${lines[1]}${" "}</text>
    <text x=${left + 14} y=${top + 56} class="value">${lines[2]}</text>
  </g>`;
}

function Edge({ edge }) {
  const path = edge.points.map((one, at) => `${at ? "L" : "M"}${one.x.toFixed(1)} ${one.y.toFixed(1)}`).join(" ");
  return html`<g class=${edge.is_shuffled ? "edge shuffled" : "edge"}>
    <path d=${path} marker-end="url(#arrow)"><title>${edge.told}</title></path>
  </g>`;
}

// Rows on an edge, drawn above all lines.
function Flow({ edge, text }) {
  const middle = edge.points[Math.floor(edge.points.length / 2)];
  return html`<g class="edge">${text && html`<text x=${middle.x} y=${middle.y - 5} text-anchor="middle">${text}</text>`}</g>`;
}

function Details({ node, graph, newest, close }) {
  const into = graph.edges.filter((edge) => edge.to === node.id);
  const remembers = Object.entries(newest.remembers[node.state] || newest.remembers[node.name] || {});
  const watermark = node.kind === "stage" ? newest.watermarks[`stage:${node.name}`] : newest.watermarks[node.name];
  const lag = valueOf(node, "lag", newest);
  return html`<div class="details" role="region" aria-label="details of the node">
    <div class="row"><h3>${node.title}</h3><button onClick=${close}>close</button></div>
    ${(node.facts || []).length > 0 && html`<ul>${node.facts.map((fact) => html`<li>${fact}</li>`)}</ul>`}
    <${Facts} of=${[
      ["columns", node.columns.join(", ")],
      ["reads", into.map((edge) => `${edge.from}${edge.steps.length ? `: ${edge.steps.join("; ")}` : ""}${edge.shuffled_by.length ? `, shuffled by ${edge.shuffled_by.join(", ")}` : ""}`).join(" · ")],
      ["state tables", Object.entries(node.tables || {}).map(([name, key]) => `${name}${key.length ? ` by ${key.join(", ")}` : ""}`).join(" · ")],
      ["shares its state with", (node.shares_state_with || []).join(", ")],
      ["watermark", watermark === undefined ? null : `${shownTime(watermark)}${lag === null ? "" : `, ${shownSeconds(lag)} behind`}`],
      ["held by", newest.held_by[node.name]],
      ["serves views", (node.views || []).join(", ")],
    ]} />
    ${remembers.length > 0 && html`<h4>Remembers</h4><${Facts} of=${remembers.map(([name, value]) => [name.replaceAll("_", " "), name.includes("bytes") ? shownBytes(value) : typeof value === "object" ? JSON.stringify(value) : String(value)])} />`}
    ${node.kind === "stage" && html`<h4>The same as a batch query</h4>${node.sql ? html`<pre tabindex="0">${node.sql}</pre>` : html`<${Note}>${node.why_no_sql || "This stage has none."}</${Note}>`}`}
  </div>`;
}

function shownValue(node, value, metric, newest) {
  const shown = value === null ? "" : `${METRICS[metric][0]}: ${METRICS[metric][1](value)}`;
  const holds = node.kind === "source" && Object.values(newest.held_by).includes(node.name);
  return holds ? [shown, "holds the watermark"].filter(Boolean).join(", ") : shown;
}

function valueOf(node, metric, newest) {
  const known = (value) => (value === undefined || value === null ? null : value);
  if (metric === "lag") {
    const watermark = node.kind === "stage" ? newest.watermarks[`stage:${node.name}`] : node.kind === "source" ? newest.watermarks[node.name] : undefined;
    return watermark === undefined || !newest.last || newest.last.at_us === null ? null : Math.max(0, (newest.last.at_us - watermark) / 1e6);
  }
  if (node.kind === "source") return metric === "rows" && newest.last ? known(newest.last.rows_in[node.name]) : null;
  if (node.kind === "view") {
    if (metric === "rows" && newest.last) return known(newest.last.views[node.name] ? newest.last.views[node.name].answer_rows : newest.last.rows_out);
    return null;
  }
  const did = newest.stages[node.name] || newest.stages[alias(node.name)];
  if (metric === "seconds") return did ? known(did.seconds) : null;
  if (metric === "rows") return did && did.rows_in !== undefined ? did.rows_in + (did.rows_out || 0) : null;
  const counts = newest.remembers[node.state];
  if (counts && counts.resident_bytes !== undefined) return counts.resident_bytes;
  return known(newest.state_bytes[node.state] ?? newest.state_bytes[alias(node.state)]);
}

// Inside Spark the first join is called "join".
function alias(name) {
  return name === "join-0" ? "join" : name;
}

// Rows on an edge in the newest epoch: what came out where it begins, or what went in where it ends.
function flowOf(edge, graph, newest) {
  if (!newest.last) return "";
  const [from, to] = [edge.from, edge.to].map((id) => graph.nodes.find((node) => node.id === id));
  const did = newest.last.stages[from.name] || newest.last.stages[alias(from.name)];
  const into = newest.last.stages[to.name] || newest.last.stages[alias(to.name)];
  const isAlone = graph.edges.filter((one) => one.to === edge.to && one.input === edge.input).length === 1;
  const rows = [
    isAlone && to.kind === "stage" && into && into.inputs ? into.inputs[edge.input] : null,
    from.kind === "source" ? newest.last.rows_in[from.name] : did && did.rows_out,
    isAlone && to.kind === "view" ? valueOf(to, "rows", newest) : null,
  ].find((one) => one !== undefined && one !== null);
  if (rows === undefined) return "";
  return newest.gap === null ? `${shownNumber(rows)} rows` : `${shownNumber(rows / newest.gap)} rows/s`;
}

function heatOf(value, most) {
  return value === null || most <= 0 ? 0 : Math.min(4, 1 + Math.floor((value / most) * 3.999));
}

function cut(text, length) {
  const letters = [...text];
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : text;
}

function arranged(graph, isNarrow) {
  const drawn = new Graph({ multigraph: true });
  drawn.setGraph({ rankdir: isNarrow ? "TB" : "LR", nodesep: 26, ranksep: isNarrow ? 46 : 92, marginx: 12, marginy: 16 });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const node of graph.nodes) drawn.setNode(node.id, { width: WIDTH, height: HEIGHT });
  graph.edges.forEach((edge, at) => drawn.setEdge(edge.from, edge.to, { at }, String(at)));
  layout(drawn);
  const { width, height } = drawn.graph();
  const edges = drawn.edges().map((one) => {
    const found = drawn.edge(one);
    const edge = graph.edges[found.at];
    return { ...edge, points: found.points, is_shuffled: edge.shuffled_by.length > 0, told: [...edge.steps, edge.shuffled_by.length ? `shuffled by ${edge.shuffled_by.join(", ")}` : ""].filter(Boolean).join("; ") };
  });
  return { width: Math.ceil(width), height: Math.ceil(height), edges, nodes: graph.nodes.map((node) => ({ node, ...drawn.node(node.id) })) };
}

function useNarrow(box) {
  const [isNarrow, setNarrow] = useState(window.innerWidth < 760);
  useEffect(() => {
    const watcher = new ResizeObserver((found) => setNarrow(found[0].contentRect.width < 700));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  return isNarrow;
}
