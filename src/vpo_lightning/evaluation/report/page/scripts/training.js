// Curves over training steps, in groups, and the seconds of a step by stage.

const STAGE_COLOURS = ["var(--run-1)", "var(--run-3)", "var(--run-5)", "var(--run-2)", "var(--run-4)", "var(--faint)"];

function trainingCharts() {
  const place = byId("training-charts");
  if (!place) return [];
  const longest = Math.max(...DATA.curves.flatMap((c) => Object.values(c.series).map((s) => s.x.length)));
  const widths = [...new Set([1, Math.round(longest / 30), Math.round(longest / 10)])].filter((w) => w > 0);
  state.smoothing ??= widths[Math.min(1, widths.length - 1)];
  const names = ["none", "a little", "strong"];
  byId("training-controls").replaceChildren(
    choice("Smoothing", widths.map((w, i) => [String(w), names[i]]), String(state.smoothing), (value) => {
      state.smoothing = Number(value);
      redraw();
    }),
  );
  const groups = Map.groupBy
    ? Map.groupBy(DATA.curves, (curve) => curve.group)
    : DATA.curves.reduce((map, c) => map.set(c.group, [...(map.get(c.group) || []), c]), new Map());
  const renders = [];
  place.replaceChildren(legend([...RUNS.keys()]));
  for (const [group, curves] of groups) {
    const grid = el("div", { class: "charts" });
    place.append(el("h3", {}, group), grid);
    for (const curve of curves) {
      const chart = { ...curve, xTitle: "step", isFraction: curve.fraction };
      const { figure, render } = lineChart(chart);
      grid.append(figure);
      renders.push(() => {
        chart.smoothing = state.smoothing;
        return render();
      });
    }
    if (group === "Time and cost") renders.push(stageChart(grid));
  }
  return renders;
}

function stageChart(grid) {
  const rows = Object.entries(DATA.stages).flatMap(([label, stages]) =>
    Object.entries(stages).map(([stage, seconds], order) => ({ label, stage, seconds, order })),
  );
  const stages = [...new Set(rows.map((row) => row.stage))];
  const { figure, plot } = chartFigure("Seconds by stage", "Mean of a step.", () =>
    table(null, ["run", ...stages], Object.entries(DATA.stages).map(([label, seconds]) => [
      label, ...stages.map((stage) => number(seconds[stage])),
    ])),
  );
  grid.append(figure);
  return async () => {
    const shown = rows.filter((row) => !state.hidden.has(row.label));
    const labels = [...RUNS.keys()].filter((label) => shown.some((row) => row.label === label));
    await draw(plot, {
      height: Math.max(20 * labels.length, 40),
      data: { values: shown },
      mark: { type: "bar", height: { band: 0.7 } },
      encoding: {
        x: { field: "seconds", type: "quantitative", title: "seconds", stack: "zero" },
        y: { field: "label", type: "nominal", title: null, sort: labels, axis: { labelLimit: 130 } },
        color: {
          field: "stage", type: "nominal", scale: { domain: stages, range: STAGE_COLOURS },
          legend: { title: null, columns: 3 },
        },
        order: { field: "order" },
      },
    });
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `Seconds of a step by stage: ${stages.join(", ")}`);
  };
}
