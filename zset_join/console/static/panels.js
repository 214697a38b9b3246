// The panels that are asked for at a click: rows and their history, verification, keys, dead letters, waiting, files, options.

import { html, useEffect, useMemo, useRef, useState } from "./vendored/preact-htm.js";
import { Facts, Note, Table, Trouble, Value, useAnswer } from "./parts.js";
import { act, ask, shownBytes, shownNumber, shownSeconds, shownTime } from "./store.js";

export function Tail({ tail }) {
  return html`<section aria-labelledby="tail-title">
    <h2 id="tail-title">Changelog</h2>
    ${tail.length === 0 && html`<${Note}>No change yet, or none that is still in the checkpoint.</${Note}>`}
    ${tail.slice(0, 12).map((one) => html`<${Change} key=${`${one.epoch} ${one.view}`} of=${one} />`)}
  </section>`;
}

// Drawn once: a change that is known stays as it is while others arrive.
function Change({ of }) {
  return useMemo(() => html`<div class="change">
    <h3>epoch ${of.epoch}, view ${of.view}: ${of.total} ${of.total === 1 ? "row" : "rows"}${of.total > of.rows.length ? `, the first ${of.rows.length} of them` : ""}</h3>
    <${Table} label=${`changes of epoch ${of.epoch} of view ${of.view}`} columns=${of.columns} rows=${of.rows.slice(0, 50)} weights=${of.weights} />
  </div>`, [of]);
}

export function Rows({ overview, place }) {
  const [table, setTable] = useState(place);
  const [where, setWhere] = useState({});
  const [asked, setAsked] = useState({ table: place, where: {} });
  const [row, setRow] = useState(null);
  const [answer, trouble, asking] = useAnswer(() => ask("rows", { table: asked.table, where: JSON.stringify(asked.where) }), [asked]);
  const isView = answer !== null && overview.views.includes(answer.table);
  const search = (event) => {
    event.preventDefault();
    setRow(null);
    setAsked({ table: table || (answer && answer.table), where: Object.fromEntries(Object.entries(where).filter(([, text]) => text !== "")) });
  };
  return html`<section aria-labelledby="rows-title">
    <h2 id="rows-title">Rows that are there now</h2>
    ${answer && html`<form onSubmit=${search}>
      <label>of <select value=${answer.table} onChange=${(event) => {
        setTable(event.target.value);
        setWhere({});
        setRow(null);
        setAsked({ table: event.target.value, where: {} });
      }}>${answer.tables.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      ${answer.columns.filter((name) => !name.startsWith("_zset")).map((name) => html`<label class="column"><span>${name}</span> <input value=${where[name] || ""} onInput=${(event) => setWhere({ ...where, [name]: event.target.value })} autocomplete="off" spellcheck="false" /></label>`)}
      <button type="submit">search</button>
    </form>`}
    ${asking && html`<${Note}>Reading…</${Note}>`}
    ${trouble && html`<${Trouble} message=${trouble} /><button onClick=${() => setAsked({ table: asked.table, where: {} })}>start over</button>`}
    ${answer && html`<p>${answer.total} ${answer.total === 1 ? "row" : "rows"}${answer.total > answer.rows.length ? `, the first ${answer.rows.length} of them` : ""}${isView && overview.can.explain_row ? "; choose one to see where it comes from" : ""}</p>
      <div class="scroll" role="region" tabindex="0" aria-label="rows"><table>
        <thead><tr>${isView && html`<th scope="col"><span class="hidden">explain</span></th>`}${answer.columns.map((name, at) => html`<th scope="col" class=${answer.rows.length && typeof answer.rows[0][at] === "number" ? "number" : ""}>${name}</th>`)}</tr></thead>
        <tbody>${answer.rows.map((values, at) => html`<tr>
          ${isView && html`<td><button onClick=${() => setRow(Object.fromEntries(answer.columns.map((name, place) => [name, values[place]])))} aria-label=${`explain row ${at + 1}`}>explain</button></td>`}
          ${values.map((value) => html`<td class=${typeof value === "number" ? "number" : ""}><${Value} of=${value} /></td>`)}
        </tr>`)}</tbody></table></div>`}
    ${row && html`<${History} view=${answer.table} row=${row} close=${() => setRow(null)} />`}
  </section>`;
}

// The values of a row that can be asked for again: not those that were cut, nor what is no plain value.
function asTexts(row) {
  const plain = Object.entries(row).filter(([, value]) => value === null || (["string", "number", "boolean"].includes(typeof value) && !/… \([\d,]+ (characters|bytes)\)$/.test(value)));
  return Object.fromEntries(plain.map(([name, value]) => [name, value === null ? "" : String(value)]));
}

function History({ view, row, close }) {
  const [answer, trouble, asking] = useAnswer(() => ask("explain_row", { view, where: JSON.stringify(asTexts(row)) }), [view, row]);
  const box = useRef(null);
  useEffect(() => box.current.scrollIntoView({ block: "nearest" }), [row]);
  const inputs = answer ? [...new Set(answer.events.flatMap((event) => event.changes.map((change) => change.input)))] : [];
  return html`<div class="details" ref=${box} role="region" aria-label="history of the row">
    <div class="row"><h3>Where the row comes from</h3><button onClick=${close}>close</button></div>
    ${asking && html`<${Note}>Replaying what came…</${Note}>`}
    ${trouble && html`<${Trouble} message=${trouble} />`}
    ${answer && answer.events.length === 0 && html`<${Note}>No epoch made or unmade this row.</${Note}>`}
    ${answer && answer.events.length > 0 && html`<div class="scroll" role="region" tabindex="0" aria-label="timeline"><table class="timeline">
      <thead><tr><th scope="col">epoch</th>${inputs.map((name) => html`<th scope="col">${name}</th>`)}<th scope="col">${view}</th></tr></thead>
      <tbody>${answer.events.map((event) => html`<tr>
        <th scope="row" class="number">${event.epoch}</th>
        ${inputs.map((name) => html`<td>${event.changes.filter((change) => change.input === name).map((change) => html`<${Signed} row=${change.row} weight=${change.weight} />`)}</td>`)}
        <td>${event.emitted.map(([one, weight]) => html`<${Signed} row=${one} weight=${weight} />`)}${event.time && html`<p class="note">${event.time}</p>`}${event.is_snapshot && html`<p class="note">was live when the log begins</p>`}</td>
      </tr>`)}</tbody></table></div>
      ${!answer.is_complete && html`<${Note}>The log does not reach back to the first epoch.</${Note}>`}`}
  </div>`;
}

function Signed({ row, weight }) {
  return html`<div class=${`signed ${weight < 0 ? "minus" : "plus"}`}><b>${weight < 0 ? `−${-weight}` : `+${weight}`}</b> ${Object.entries(row).map(([name, value], at) => html`${at ? ", " : ""}<span class="quiet">${name}</span> <${Value} of=${value} />`)}</div>`;
}

export function Verify({ overview }) {
  const [view, setView] = useState(overview.views[0] || null);
  const [steps, setSteps] = useState([]);
  const [verdict, setVerdict] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const events = useRef(null);
  useEffect(() => () => events.current && events.current.close(), []);
  const isRunning = steps.length > 0 && !verdict && !trouble;
  const start = () => {
    setSteps(["asking"]);
    setVerdict(null);
    setTrouble(null);
    const source = new EventSource(`/api/verifying?${new URLSearchParams({ view })}`);
    events.current = source;
    source.addEventListener("step", (event) => setSteps((before) => [...before, JSON.parse(event.data).step]));
    source.addEventListener("verdict", (event) => {
      source.close();
      setVerdict(JSON.parse(event.data));
    });
    source.addEventListener("trouble", (event) => {
      source.close();
      setTrouble(JSON.parse(event.data).message);
    });
    source.onerror = () => {
      source.close();
      setTrouble("The console no longer answers.");
    };
  };
  return html`<section aria-labelledby="verify-title">
    <h2 id="verify-title">Verify</h2>
    <p>Compares a view with the batch query over everything that came.</p>
    <div class="row"><label>view <select value=${view} onChange=${(event) => setView(event.target.value)}>${overview.views.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <button onClick=${start} disabled=${isRunning}>verify</button></div>
    <div aria-live="polite">
      ${steps.length > 0 && html`<ol class="steps">${steps.map((step) => html`<li>${step}</li>`)}</ol>`}
      ${trouble && html`<${Trouble} message=${trouble} />`}
      ${verdict && html`<p class=${`verdict ${verdict.equal ? "good" : "bad"}`}>${verdict.equal ? "Equal" : `${verdict.different_rows} rows differ`}: ${verdict.expected_rows} rows expected, ${verdict.actual_rows} answered, after epoch ${verdict.epoch === null ? "–" : verdict.epoch}${verdict.unjudged_rows ? `; ${verdict.unjudged_rows} unjudged because of ties` : ""}</p>`}
    </div>
    ${verdict && verdict.differences.length > 0 && html`<${Differences} of=${verdict.differences} />`}
  </section>`;
}

function Differences({ of }) {
  const columns = Object.keys(of[0].row);
  const copies = (count) => (count ? `${count} ×` : "absent");
  return html`<div class="scroll" role="region" tabindex="0" aria-label="differences"><table>
    <thead><tr><th scope="col">batch query has</th><th scope="col">view has</th>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${of.map((one) => html`<tr class=${one.actual > one.expected ? "plus" : "minus"}><td>${copies(one.expected)}</td><td>${copies(one.actual)}</td>${columns.map((name) => html`<td><${Value} of=${one.row[name]} /></td>`)}</tr>`)}</tbody>
  </table></div>`;
}

export function Keys({ epochs }) {
  const [answer, trouble, asking, again] = useAnswer(() => ask("hot_keys"), []);
  const fan = [...epochs].reverse().find((one) => one.fan_out);
  return html`<section aria-labelledby="keys-title">
    <div class="row"><h2 id="keys-title">Hottest keys</h2><button onClick=${again} disabled=${asking}>read again</button></div>
    ${asking && html`<${Note}>Reading the state…</${Note}>`}
    ${trouble && html`<${Trouble} message=${trouble} />`}
    ${fan && html`<p>Most pairs in one epoch: ${fan.fan_out.pairs}${fan.fan_out.key === undefined ? "" : html`, of key <${Value} of=${fan.fan_out.key} />`} (epoch ${fan.epoch}).</p>`}
    ${answer && html`<p class="note">Counted: ${answer.counted}.</p>`}
    ${answer && !answer.stages.some((one) => one.keys.length) && html`<${Note}>No key has rows.</${Note}>`}
    <div class="cards">${answer && answer.stages.filter((one) => one.keys.length).map((one) => html`<div class="card" key=${`${one.table} ${one.input}`}>
      <h3>${one.table === one.stage ? one.stage : one.table}: ${one.input}${one.rows === null ? "" : ` (${shownNumber(one.rows)} rows)`}</h3>
      <${Table} label=${`hottest keys of ${one.table}, ${one.input}`} columns=${[...one.columns, one.unit]} numbers=${[one.columns.length]} rows=${one.keys.map(([key, count]) => [...key, count])} />
    </div>`)}</div>
  </section>`;
}

export function Letters({ newest, actions }) {
  const [answer, trouble, asking, again] = useAnswer(() => ask("dead_letters"), [newest ? newest.epoch : -1]);
  const [done, setDone] = useState(null);
  const [acting, setActing] = useState(false);
  const [refusal, setRefusal] = useState(null);
  const replay = () => {
    setActing(true);
    setDone(null);
    setRefusal(null);
    act("replay").then(setDone, (error) => setRefusal(error.message)).then(() => (setActing(false), again()));
  };
  const place = (one) => (one.topic ? `${one.topic}[${one.partition}]@${one.offset}` : null);
  return html`<section aria-labelledby="letters-title">
    <div class="row"><h2 id="letters-title">Dead letters</h2><button onClick=${again} disabled=${asking}>read again</button></div>
    ${actions.replay && html`<p><button onClick=${replay} disabled=${acting}>${actions.replay}</button></p>`}
    <div aria-live="polite">${done && html`<p class="verdict good">${done}</p>`}${refusal && html`<${Trouble} message=${refusal} />`}</div>
    ${trouble && html`<${Trouble} message=${trouble} />`}
    ${answer && html`<p>${answer.total === 0 ? "Nothing was put aside." : `${answer.total} put aside${answer.letters.length < answer.total ? `, the newest ${answer.letters.length} of them` : ""}`}</p>`}
    ${answer && answer.letters.length > 0 && html`<${Table} label="letters, newest first" columns=${["epoch", "stream", "code", "reason", "record or row", "place", "sent again"]} rows=${answer.letters.map((one) => [one.epoch, one.stream, one.code, one.reason, one.raw, place(one), one.replayed ? "yes" : "no"])} />`}
  </section>`;
}

export function Waiting({ newest }) {
  const [answer, trouble] = useAnswer(() => ask("waiting"), [newest ? newest.epoch : -1]);
  return html`<section aria-labelledby="waiting-title">
    <h2 id="waiting-title">Waiting for time</h2>
    ${trouble && html`<${Trouble} message=${trouble} />`}
    ${answer && answer.stages.length === 0 && html`<${Note}>No stage of this plan waits for time or asks the outside.</${Note}>`}
    ${answer && answer.stages.map((one) => html`<${WaitingStage} key=${one.stage} of=${one} />`)}
  </section>`;
}

function WaitingStage({ of }) {
  const ahead = of.due && of.due.watermark_us !== null && of.watermark_us ? (of.due.watermark_us > of.watermark_us ? `, ${shownSeconds((of.due.watermark_us - of.watermark_us) / 1e6)} ahead of the watermark` : ", with the next epoch") : "";
  const named = (counts) => Object.entries(counts || {}).filter(([name]) => !name.includes("bytes"));
  const counts = [...named(of.remembers), ...named(of.lookups).filter(([name]) => !(name in of.remembers))];
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  const plain = (name) => name.replaceAll("_", " ");
  return html`<div class="card">
    <h3>${of.stage}: ${of.title}</h3>
    <${Facts} of=${[
      ["next due by watermark", of.due && of.due.watermark_us !== null ? `${shownTime(of.due.watermark_us)}${ahead}` : null],
      ["next due by clock", of.due && of.due.processing_time_us !== null ? shownTime(of.due.processing_time_us) : null],
      ["waits for", of.due ? null : "nothing"],
      ["watermark", of.watermark_us ? shownTime(of.watermark_us) : null],
      ["held by", of.held_by],
      ...counts.filter(([name, value]) => value && /^(parked_rows|left_rows|right_rows|waiting_rows|late_rows|misses|keys)$/.test(name)).map(([name, value]) => [plain(name), text(value)]),
    ]} />
    ${of.tables.length > 0 && html`<p>Rows that are remembered: ${of.tables.map((name) => html`<a href=${`#rows/${encodeURIComponent(name)}`}>${name}</a> `)}</p>`}
    ${counts.length > 0 && html`<details><summary>all counts</summary><${Facts} of=${counts.map(([name, value]) => [plain(name), text(value)])} /></details>`}
  </div>`;
}

export function Diff() {
  const [turn, setTurn] = useState(0);
  const [answer, trouble, asking] = useAnswer(() => ask("diff"), [turn]);
  return html`<section aria-labelledby="diff-title">
    <div class="row"><h2 id="diff-title">What the changed query answers otherwise</h2><button onClick=${() => setTurn(turn + 1)} disabled=${asking}>compare again</button></div>
    ${asking && html`<${Note}>Comparing…</${Note}>`}
    ${trouble && html`<${Trouble} message=${trouble} />`}
    ${answer && html`<ul class="lines">${answer.lines.map((line) => html`<li>${line}</li>`)}</ul>
      <${Table} label="views" columns=${["view", "state", "adds", "removes", "changes", "rows before"]} numbers=${[2, 3, 4, 5]}
        rows=${answer.views.map((one) => [one.view, one.status, one.counts.added, one.counts.removed, one.counts.changed, one.before === null ? "–" : one.before])} />
      ${answer.views.filter((one) => one.pairs.length).map((one) => html`<div key=${one.view}>
        <h3>${one.view}${one.counts.added + one.counts.removed + one.counts.changed > one.pairs.length ? `: the first ${one.pairs.length} of its differences` : ""}</h3>
        <div class="scroll" role="region" tabindex="0" aria-label=${`differences of ${one.view}`}><table class="timeline">
          <thead><tr><th scope="col">now</th><th scope="col">with the changed query</th></tr></thead>
          <tbody>${one.pairs.map(([before, after]) => html`<tr>
            <td>${before ? html`<${Signed} row=${before} weight=${-1} />` : html`<i class="null">absent</i>`}</td>
            <td>${after ? html`<${Signed} row=${after} weight=${1} />` : html`<i class="null">absent</i>`}</td>
          </tr>`)}</tbody></table></div>
      </div>`)}`}
  </section>`;
}

export function Files({ overview, newest }) {
  const [answer, trouble] = useAnswer(() => ask("files"), [newest ? newest.epoch : -1]);
  const [turn, setTurn] = useState(0);
  const [damage, damageTrouble, checking] = useAnswer(() => ask("damage"), [turn]);
  return html`<section aria-labelledby="files-title">
    <h2 id="files-title">Checkpoint</h2>
    ${trouble && html`<${Trouble} message=${trouble} />`}
    ${answer && html`<${Facts} of=${[
      ["location", answer.location],
      ["owner", answer.owner ? `${answer.owner.who}: ${answer.owner.state}` : "nobody has claimed it"],
      ["newest epoch", answer.epoch],
      ["buckets", answer.buckets],
      ["logs", shownBytes(answer.log_bytes)],
      ["snapshots", shownBytes(answer.snapshot_bytes)],
      ["answers kept", shownBytes(answer.answer_bytes)],
      ...Object.entries(answer.positions).map(([name, value]) => [`position of ${name}`, String(value)]),
    ]} />
    <${Table} label="logs and snapshots" columns=${["state of", "bucket", "snapshot through epoch", "snapshot", "its rows", "log files", "log", "epochs in the log"]}
      numbers=${[1, 2, 3, 4, 5, 6]}
      rows=${answer.stages.map((one) => [one.stage, one.bucket, one.snapshot_epoch === null ? "none" : one.snapshot_epoch, shownBytes(one.snapshot_bytes), one.snapshot_rows, one.log_files, shownBytes(one.log_bytes), one.logs.length ? `${one.logs[0].first} to ${one.logs[one.logs.length - 1].last}` : "none"])} />`}
    <div class="row"><h3>Is anything damaged?</h3><button onClick=${() => setTurn(turn + 1)} disabled=${checking}>check every file again</button></div>
    ${damageTrouble && html`<${Trouble} message=${damageTrouble} />`}
    ${damage && damage.found.length === 0 && html`<p class="verdict good">Nothing: ${damage.checked} files, ${shownBytes(damage.bytes)}, have the checksums they were written with.</p>`}
    ${damage && damage.found.length > 0 && html`<p class="verdict bad">${damage.found.length} damaged</p>
      <ul class="damage">${damage.found.map((one) => html`<li><b>${one.code}</b> <code>${one.file}</code><br />${one.what}</li>`)}</ul>`}
  </section>`;
}

export function Options({ overview, newest }) {
  const views = overview.views.map((name) => {
    const counts = newest && (newest.views[name] || (overview.views.length === 1 ? { answer_rows: newest.rows_out, retractions: newest.retractions } : null));
    return [name, overview.view_columns[name].join(", "), counts ? counts.answer_rows : null, counts ? counts.retractions : null];
  });
  const named = (found) => Object.entries(found || {});
  return html`<section aria-labelledby="options-title">
    <h2 id="options-title">Views and options</h2>
    <h3>Views</h3>
    <${Table} label="views" columns=${["view", "columns", "rows of the newest epoch", "retractions"]} numbers=${[2, 3]} rows=${views} />
    ${named(overview.in_force).length > 0 && html`<h3>Options in force</h3>
      <${Table} label="options in force" columns=${["name", "value"]} rows=${named(overview.in_force)} />`}
    ${named(overview.options).length > 0 && html`<h3>What the checkpoint says of its query</h3>
      <${Table} label="description of the query" columns=${["name", "value"]} rows=${named(overview.options)} />`}
    ${(overview.described || []).length > 0 && html`<h3>Its plan</h3><pre tabindex="0" aria-label="the plan as text">${overview.described.join("\n")}</pre>`}
  </section>`;
}

