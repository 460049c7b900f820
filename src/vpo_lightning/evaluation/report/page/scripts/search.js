// Quality against the budget of a search.

function searchCharts() {
  const place = byId("search-charts");
  if (!place) return [];
  const units = [...new Set(DATA.search.map((chart) => chart.unit))];
  const unit = units.includes(state.budget) ? state.budget : units[0];
  byId("search-controls").replaceChildren(
    choice("Budget in", units.map((u) => [u, UNIT_TITLES[u] || u]), unit, (value) => {
      state.budget = value;
      redraw();
    }),
  );
  const charts = DATA.search.filter((chart) => chart.unit === unit);
  place.replaceChildren();
  const renders = charts.map((chart) => {
    const { figure, render } = lineChart({
      ...chart, about: null, xTitle: UNIT_TITLES[unit] || unit, height: 240,
      isFraction: chart.figure === "solved",
    });
    place.append(figure);
    return render;
  });
  place.parentElement.querySelector(".legend")?.remove();
  place.before(legend([...new Set(charts.flatMap((chart) => Object.keys(chart.series)))]));
  return renders;
}
