// Small parts that panels are made of. Values are text nodes: nothing here turns a value into markup.

import { html, useEffect, useState } from "./vendored/preact-htm.js";

export function Value({ of }) {
  if (of === null || of === undefined) return html`<i class="null">NULL</i>`;
  return html`<span>${typeof of === "object" ? JSON.stringify(of) : String(of)}</span>`;
}

// A table: columns are names, rows are arrays; `weights` colours rows by their sign.
export function Table({ label, columns, rows, weights, numbers = [] }) {
  return html`<div class="scroll" role="region" tabindex="0" aria-label=${label}>
    <table>
      <thead>
        <tr>
          ${weights && html`<th scope="col" class="number">weight</th>`}
          ${columns.map((name, at) => html`<th scope="col" class=${numbers.includes(at) || (rows.length && typeof rows[0][at] === "number") ? "number" : ""}>${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map((row, at) => html`<tr class=${weights ? (weights[at] < 0 ? "minus" : "plus") : ""}>
          ${weights && html`<td class="number sign">${weights[at] < 0 ? `−${-weights[at]}` : `+${weights[at]}`}</td>`}
          ${row.map((value, place) => html`<td class=${numbers.includes(place) || typeof value === "number" ? "number" : typeof value === "string" && value.length > 40 ? "long" : ""}><${Value} of=${value} /></td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

export function Trouble({ message }) {
  return html`<p class="trouble" role="alert">${message}</p>`;
}

export function Note({ children }) {
  return html`<p class="note">${children}</p>`;
}

// Ask when the panel is shown and again when `depends` changes; returns [answer, trouble, isAsking, askAgain].
export function useAnswer(read, depends) {
  const [state, setState] = useState({ answer: null, trouble: null, asking: false });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (read === null) return undefined;
    let current = true;
    setState((before) => ({ ...before, asking: true }));
    read().then(
      (answer) => current && setState({ answer, trouble: null, asking: false }),
      (error) => current && setState({ answer: null, trouble: error.message, asking: false }),
    );
    return () => {
      current = false;
    };
  }, [...depends, turn]);
  return [state.answer, state.trouble, state.asking, () => setTurn((one) => one + 1)];
}

export function Facts({ of }) {
  return html`<dl class="facts">
    ${of.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}
