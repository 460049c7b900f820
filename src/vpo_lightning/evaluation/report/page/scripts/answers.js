// What k answers are worth: best@k, E_w[max@k], pass@k of every policy on one chart.

const UNIT_TITLES = {
  answers: "answers", calls: "model calls", tokens: "tokens", seconds: "seconds",
};

function answerCharts() {
  const place = byId("answers-charts");
  if (!place) return [];
  const settings = [...new Set(DATA.answers.map((chart) => chart.setting))];
  const setting = settings.includes(state.setting) ? state.setting : settings[0];
  const units = [...new Set(DATA.answers.filter((c) => c.setting === setting).map((c) => c.unit))];
  const unit = units.includes(state.unit) ? state.unit : units[0];
  const pick = (key) => (value) => {
    state[key] = value;
    redraw();
  };
  byId("answers-controls").replaceChildren(
    choice("Temperature", settings.map((s) => [s, s]), setting, pick("setting")),
    choice("k counts", units.map((u) => [u, UNIT_TITLES[u] || u]), unit, pick("unit")),
  );
  const charts = DATA.answers.filter((chart) => chart.setting === setting && chart.unit === unit);
  const labels = [...new Set(charts.flatMap((chart) => Object.keys(chart.series)))];
  place.replaceChildren();
  place.previousElementSibling.after(place);
  const renders = charts.map((chart) => {
    const about = chart.about[0].toUpperCase() + chart.about.slice(1);
    const { figure, render } = lineChart({
      ...chart, about, xTitle: UNIT_TITLES[unit] || unit, isLog: true, height: 260,
    });
    place.append(figure);
    return render;
  });
  place.parentElement.querySelector(".legend")?.remove();
  place.before(legend(labels));
  return renders;
}
