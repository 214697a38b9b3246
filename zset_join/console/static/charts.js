// The charts of a query's epochs. A number that was not recorded leaves a gap.

import uPlot from "./vendored/uplot.js";
import { html, useEffect, useMemo, useRef } from "./vendored/preact-htm.js";
import { epochSeconds, gapSeconds, shownBytes, shownNumber, shownSeconds, sum } from "./store.js";

const COLOURS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];

export function Charts({ epochs, theme }) {
  const charts = useMemo(() => seriesOf(epochs), [epochs]);
  return html`<section aria-labelledby="charts-title">
    <h2 id="charts-title">Epochs</h2>
    <div class="charts">
      ${charts.map((chart) => html`<${Chart} key=${`${chart.title} ${theme} ${chart.series.map((one) => one.name).join(" ")}`} chart=${chart} />`)}
    </div>
  </section>`;
}

function Chart({ chart }) {
  const box = useRef(null);
  const plot = useRef(null);
  const has = chart.series.some((one) => one.values.some((value) => value !== null));
  useEffect(() => {
    if (!has) return undefined;
    plot.current = drawn(box.current, chart);
    const watcher = new ResizeObserver(() => plot.current && plot.current.setSize({ width: box.current.clientWidth, height: 150 }));
    watcher.observe(box.current);
    return () => {
      watcher.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [has]);
  useEffect(() => {
    if (plot.current) plot.current.setData(dataOf(chart));
  }, [chart]);
  const newest = chart.series.map((one) => `${one.name} ${chart.shown(lastOf(one.values))}`).join(", ");
  return html`<figure class="chart">
    <figcaption><b>${chart.title}</b> ${has && chart.series.map((one, at) => html`<span class="unit">${chart.series.length > 1 && html`<i class=${`swatch series-${(at % COLOURS.length) + 1}`}></i>`}${one.name} ${chart.shown(lastOf(one.values))} </span>`)}</figcaption>
    ${has ? html`<div ref=${box} class="plot" role="img" aria-label=${`${chart.title} by epoch; newest: ${newest}`}></div>`
      : html`<p class="note">${chart.absent}</p>`}
  </figure>`;
}

function drawn(box, chart) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const series = chart.series.map((one, at) => ({
    label: one.name,
    stroke: colour(COLOURS[at % COLOURS.length]),
    fill: chart.stacked ? colour(COLOURS[at % COLOURS.length]) : undefined,
    width: chart.stacked ? 0.5 : 1.5,
    points: { show: chart.series[0].values.length < 3, size: 5 },
    spanGaps: false,
  }));
  const options = {
    width: Math.max(box.clientWidth, 100),
    height: 150,
    cursor: { drag: { x: false, y: false } },
    legend: { show: false },
    scales: { x: { time: false }, y: { range: (plot, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
    axes: [{ ...axis, size: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000] }, { ...axis, size: (plot, values) => 14 + 6.4 * Math.max(5, ...(values || []).map((one) => one.length)), values: (plot, ticks) => ticks.map(chart.shown) }],
    series: [{}, ...(chart.stacked ? series.reverse() : series)],
  };
  return new uPlot(options, dataOf(chart), box);
}

// Columns for uPlot. Stacked ones are sums, the largest drawn first, so each covers what is below it.
function dataOf(chart) {
  const columns = chart.series.map((one) => one.values);
  if (!chart.stacked) return [chart.x, ...columns];
  const sums = [];
  for (const column of columns) {
    const below = sums[sums.length - 1];
    sums.push(column.map((value, at) => (value === null && (!below || below[at] === null) ? null : (value || 0) + (below ? below[at] || 0 : 0))));
  }
  return [chart.x, ...sums.reverse()];
}

function lastOf(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at];
  return null;
}

function seriesOf(epochs) {
  const isCommitted = epochs.some((one) => "commit" in one.seconds);
  // The seconds of the newest epoch are whole only once the next one has told what committing took.
  const wholeSeconds = (one) => (isCommitted && !("commit" in one.seconds) ? null : epochSeconds(one));
  const x = epochs.map((one) => one.epoch);
  const of = (name, read) => ({ name, values: epochs.map(read) });
  const named = (pick) => [...new Set(epochs.flatMap((one) => Object.keys(pick(one))))];
  const orNull = (value) => (value === undefined ? null : value);
  const sources = named((one) => one.watermarks).filter((name) => !name.startsWith("stage:"));
  const perSecond = (value) => `${shownNumber(value)}/s`;
  return [
    { title: "Input rate", x, shown: perSecond, absent: "Known from the second epoch on.", series: [of("rows", (one, at) => (gapSeconds(epochs, at) ? sum(one.rows_in) / gapSeconds(epochs, at) : null))] },
    { title: "Process rate", x, shown: perSecond, absent: "This query does not record seconds in its checkpoint.", series: [of("rows", (one) => (wholeSeconds(one) ? sum(one.rows_in) / wholeSeconds(one) : null))] },
    { title: "Epoch duration", x, shown: shownSeconds, absent: "This query does not record seconds in its checkpoint.", series: [of("epoch", wholeSeconds)] },
    { title: "Parts of an epoch", x, stacked: true, shown: shownSeconds, absent: "This query does not record seconds in its checkpoint.", series: named((one) => one.seconds).map((name) => of(name, (one) => orNull(one.seconds[name]))) },
    { title: "Watermark lag", x, shown: shownSeconds, absent: "No source has event time, or none has shown a time yet.", series: sources.map((name) => of(name, (one) => (one.watermarks[name] === undefined || one.at_us === null ? null : Math.max(0, (one.at_us - one.watermarks[name]) / 1e6)))) },
    { title: "Answer and retractions", x, shown: shownNumber, absent: "No epoch yet.", series: [of("rows", (one) => one.rows_out), of("retractions", (one) => one.retractions)] },
    { title: "State", x, shown: shownBytes, absent: "No epoch yet.", series: [of("in the checkpoint", (one) => (Object.keys(one.state_bytes).length ? sum(one.state_bytes) : null))] },
    { title: "Put aside", x, shown: shownNumber, absent: "No epoch yet.", series: [of("rows", (one) => one.put_aside), of("late changes", (one) => sum(one.late_changes))] },
  ];
}
