// Vega-Lite charts whose colours are the page's variables, so that they follow light, dark and print.

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2]];
const views = new Map();

const CONFIG = {
  background: null,
  font: "Inter, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif",
  view: { stroke: null },
  axis: {
    labelColor: "var(--soft)", titleColor: "var(--soft)", gridColor: "var(--line)",
    domainColor: "var(--faint)", tickColor: "var(--faint)", labelFontSize: 11, titleFontSize: 11,
    titleFontWeight: 500, titlePadding: 6, gridDash: [1, 2], tickSize: 4, labelPadding: 4,
  },
  axisY: { domain: false, ticks: false, tickCount: 4, titleAnchor: "end" },
  axisX: { grid: false, tickCount: 6 },
  legend: {
    labelColor: "var(--soft)", titleColor: "var(--soft)", labelFontSize: 11, titleFontSize: 11,
    titleFontWeight: 500, orient: "top", symbolSize: 90,
  },
  header: { labelColor: "var(--soft)", labelFontSize: 11 },
  line: { strokeWidth: 1.8 },
};

/** The colour and dashes of a run, a start policy or a search; the same in every chart. */
function look(label) {
  const run = RUNS.get(label);
  if (run) return { colour: `var(--run-${run.colour})`, dash: DASHES[run.dash] };
  const owner = [...RUNS.values()].find((one) => label.startsWith(`${one.label}: `));
  const others = [...EXTRA_LABELS];
  const place = others.indexOf(label);
  if (owner) return { colour: `var(--run-${owner.colour})`, dash: DASHES[place % 5] };
  return { colour: "var(--faint)", dash: DASHES[1 + (place % 4)] };
}

/** A short sample of a label's line. */
function swatch(label) {
  const { colour, dash } = look(label);
  const line = ["line", {
    x1: "0", x2: "24", y1: "5", y2: "5", stroke: colour, "stroke-width": "3",
    "stroke-dasharray": dash.join(" ") || "none",
  }, []];
  return picture(["svg", { class: "swatch", viewBox: "0 0 24 10", "aria-hidden": "true" }, [line]]);
}

/** Draws a specification into an element, in place of what was there. */
async function draw(container, specification) {
  views.get(container)?.finalize();
  container.replaceChildren();
  const spec = {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json",
    width: "container",
    autosize: { type: "fit-x", contains: "padding" },
    config: CONFIG,
    ...specification,
  };
  const parsed = vega.parse(vegaLite.compile(spec).spec, null, { ast: true });
  const view = new vega.View(parsed, {
    expr: vega.expressionInterpreter, renderer: "svg", container, hover: false, logLevel: vega.Error,
  });
  views.set(container, view);
  await view.runAsync();
  return view;
}

/** Forgets charts whose elements have left the page. */
function forgetCharts() {
  for (const [container, view] of views) {
    if (container.isConnected) continue;
    view.finalize();
    views.delete(container);
  }
}

/** A figure with a caption, a place for the chart, and its numbers as a table on demand. */
function chartFigure(title, about, makeTable) {
  const plot = el("div", { class: "plot" });
  const details = el("details", { class: "data" }, el("summary", {}, "Show the numbers"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, numbers` };
    details.append(el("div", scroll, makeTable()));
  });
  const caption = el("figcaption", {}, el("strong", {}, title), about ? el("span", {}, about) : null);
  return { figure: el("figure", {}, caption, plot, details), plot };
}
