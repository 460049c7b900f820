// Line charts over a shared x axis, with bands, a reading line and one table for all series.

/** Centred moving average over `width` points; missing values are left out. */
function smoothed(values, width) {
  if (width < 2) return values;
  const half = Math.floor(width / 2);
  return values.map((_, i) => {
    const near = values.slice(Math.max(i - half, 0), i + half + 1).filter((v) => v !== null);
    return near.length ? near.reduce((a, b) => a + b, 0) / near.length : null;
  });
}

/**
 * A figure with one line for each series.
 *
 * chart: title, about, series by label ({x, y, low, high, vx, vy}), xTitle, isLog, isFraction,
 * smoothing (points). Returns {figure, render}; render draws the labels that are not hidden.
 */
function lineChart(chart) {
  const { figure, plot } = chartFigure(chart.title, chart.about, () => lineTable(chart));
  const render = async () => {
    const shown = Object.keys(chart.series).filter((label) => !state.hidden.has(label));
    const view = await draw(plot, lineSpec(chart, shown));
    describe(plot, chart, shown);
    reading(plot, view, chart, shown);
  };
  return { figure, render };
}

function lineSpec(chart, shown) {
  const lines = [];
  const dots = [];
  for (const label of shown) {
    const series = chart.series[label];
    const y = smoothed(series.y, chart.smoothing || 1);
    series.x.forEach((x, i) => {
      lines.push({ s: label, x, y: y[i], low: series.low?.[i], high: series.high?.[i] });
    });
    (series.vx || []).forEach((x, i) => dots.push({ s: label, x, y: series.vy[i] }));
  }
  const few = shown.every((label) => chart.series[label].x.length <= 12);
  const hasBands = lines.some((row) => row.low !== undefined && row.low !== null);
  const looks = shown.map(look);
  const series = (channel, range) => ({
    [channel]: { field: "s", type: "nominal", legend: null, scale: { domain: shown, range } },
  });
  const colour = series("color", looks.map((one) => one.colour));
  const ticks = [...new Set(lines.map((row) => row.x))].sort((a, b) => a - b);
  const axis = chart.isLog && ticks.length <= 8 ? { values: ticks } : {};
  const x = {
    field: "x", type: "quantitative", title: chart.xTitle, axis: { ...axis, format: "~s" },
    scale: { nice: false, padding: 6, ...(chart.isLog ? { type: "log" } : { zero: false }) },
  };
  const y = {
    field: "y", type: "quantitative", title: null, axis: { format: chart.isFraction ? "~%" : ",.6~g" },
    scale: { zero: Boolean(chart.isFraction), nice: true },
  };
  const layer = [
    {
      mark: { type: "line", aria: false, point: few ? { size: 28, filled: true } : false },
      encoding: { x, y, ...colour, ...series("strokeDash", looks.map((one) => one.dash)) },
    },
  ];
  if (hasBands) {
    const band = { x, y: { ...y, field: "low" }, y2: { field: "high" }, ...colour };
    layer.unshift({ mark: { type: "area", opacity: 0.13, aria: false }, encoding: band });
  }
  if (dots.length) {
    const mark = { type: "point", size: 34, filled: false, strokeWidth: 1.4, aria: false };
    layer.push({ data: { values: dots }, mark, encoding: { x, y, ...colour } });
  }
  return { height: chart.height || 190, data: { values: lines }, layer };
}

/** The chart in words, for those who cannot see it. */
function describe(plot, chart, shown) {
  const ends = shown.map((label) => {
    const { y } = chart.series[label];
    return `${label} from ${number(y[0])} to ${number(y.at(-1))}`;
  });
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${chart.title} by ${chart.xTitle}: ${ends.join("; ")}`);
  plot.setAttribute("tabindex", "0");
}

/** A line that follows the pointer or the arrow keys, and the values of all series there. */
function reading(plot, view, chart, shown) {
  const tip = el("div", { class: "tip", hidden: true });
  const guide = el("div", { class: "guide", hidden: true });
  plot.append(guide, tip);
  const xs = [...new Set(shown.flatMap((label) => chart.series[label].x))].sort((a, b) => a - b);
  if (!xs.length) return;
  let place = -1;
  const hide = () => {
    tip.hidden = guide.hidden = true;
    place = -1;
  };
  const show = (index) => {
    place = Math.min(Math.max(index, 0), xs.length - 1);
    const svg = plot.querySelector("svg");
    const ratio = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const left = (view.origin()[0] + view.scale("x")(xs[place])) * ratio;
    const format = chart.isFraction ? percent : number;
    const values = shown.map((label) => [label, valueAt(chart, label, xs[place])]);
    const rows = values.filter((row) => row[1] !== null).sort((a, b) => b[1] - a[1]);
    tip.replaceChildren(
      el("b", {}, `${chart.xTitle} ${number(xs[place])}`),
      ...rows.map(([label, value]) =>
        el("div", {}, el("span", {}, swatch(label), label), el("strong", {}, format(value))),
      ),
    );
    tip.hidden = guide.hidden = false;
    guide.style.left = `${left}px`;
    guide.style.top = `${view.origin()[1] * ratio}px`;
    guide.style.height = `${view.height() * ratio}px`;
    const room = plot.clientWidth - tip.offsetWidth;
    const beside = left + 12 + tip.offsetWidth > plot.clientWidth ? left - tip.offsetWidth - 12 : left + 12;
    tip.style.left = `${Math.max(Math.min(beside, room), 0)}px`;
    tip.style.top = "0px";
  };
  const nearest = (event) => {
    const svg = plot.querySelector("svg");
    const box = svg.getBoundingClientRect();
    const inner = (event.clientX - box.left) * (svg.viewBox.baseVal.width / box.width);
    const at = view.scale("x").invert(inner - view.origin()[0]);
    const distance = (x) => Math.abs(chart.isLog ? Math.log(x / at) : x - at);
    return xs.reduce((best, x, i) => (distance(x) < distance(xs[best]) ? i : best), 0);
  };
  plot.onpointermove = (event) => show(nearest(event));
  plot.onpointerleave = hide;
  plot.onblur = hide;
  plot.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -xs.length, End: xs.length }[event.key];
    if (event.key === "Escape") hide();
    if (step === undefined) return;
    event.preventDefault();
    show(place < 0 && step > 0 ? 0 : place + step);
  };
}

function valueAt(chart, label, x) {
  const series = chart.series[label];
  const i = series.x.indexOf(x);
  return i < 0 ? null : smoothed(series.y, chart.smoothing || 1)[i];
}

function lineTable(chart) {
  const labels = Object.keys(chart.series);
  const xs = [...new Set(labels.flatMap((label) => chart.series[label].x))].sort((a, b) => a - b);
  const rows = xs.map((x) => [
    number(x),
    ...labels.map((label) => {
      const i = chart.series[label].x.indexOf(x);
      return i < 0 ? "–" : number(chart.series[label].y[i]);
    }),
  ]);
  return table(null, [chart.xTitle, ...labels], rows);
}

/** The lines' names, for paper, where the bar of runs is not printed. */
function legend(labels) {
  return el("p", { class: "legend" }, labels.map((label) => el("span", {}, swatch(label), label)));
}
