// One prompt, every run: where its answers lie in reward space, and what the first ones look like.

function comparison() {
  const place = byId("compare-cards");
  if (!place) return [];
  const prompts = [...new Set(Object.values(SAMPLES.compared).flatMap((list) => list.map((p) => p.id)))];
  const prompt = prompts.includes(state.prompt) ? state.prompt : prompts[0];
  const found = Object.entries(SAMPLES.compared)
    .map(([label, list]) => [label, list.find((entry) => entry.id === prompt)])
    .filter(([label, entry]) => entry && !state.hidden.has(label));
  const objectives = found[0]?.[1].objectives || [];
  const [x, y] = chosenAxes(objectives);
  const go = (step) => () => selectPrompt(prompts[prompts.indexOf(prompt) + step]);
  const at = prompts.indexOf(prompt);
  const axis = (label, key, value) =>
    choice(label, objectives.map((name) => [name, name]), value, (chosen) => {
      state[key] = chosen;
      redraw();
    });
  byId("compare-controls").replaceChildren(
    choice("Prompt", prompts.map((id) => [id, id]), prompt, selectPrompt),
    el("button", { class: "button", disabled: at <= 0, onclick: go(-1) }, "Previous"),
    el("button", { class: "button", disabled: at >= prompts.length - 1, onclick: go(1) }, "Next"),
    ...(objectives.length > 1 ? [axis("Across", "axisX", x), axis("Up", "axisY", y)] : []),
  );
  const text = found.find(([, entry]) => entry.prompt)?.[1].prompt;
  byId("compare-prompt").replaceChildren(text ? promptText(text) : "");
  place.replaceChildren();
  const isDrawn = found.some(([, entry]) => entry.picture?.[0] === "svg");
  place.classList.toggle("roomy", !isDrawn);
  const all = found.flatMap(([, entry]) => entry.rewards);
  return found.map(([label, entry]) => {
    const { card, plot } = compareCard(label, entry);
    place.append(card);
    return () => drawScatter(plot, label, entry, all, x, y);
  });
}

/** The two objectives that were chosen, else the two that conflict most over all prompts. */
function chosenAxes(objectives) {
  if (objectives.includes(state.axisX) && objectives.includes(state.axisY)) {
    return [state.axisX, state.axisY];
  }
  const same = (entry) => String(entry.objectives) === String(objectives);
  const entries = Object.values(SAMPLES.compared).flat().filter(same);
  const rewards = entries.flatMap((entry) => entry.rewards);
  let best = [objectives[0], objectives[1] ?? objectives[0]];
  let least = 0;
  for (let i = 0; i < objectives.length; i += 1) {
    for (let j = i + 1; j < objectives.length; j += 1) {
      const together = correlation(rewards.map((r) => r[i]), rewards.map((r) => r[j]));
      if (together < least) [least, best] = [together, [objectives[i], objectives[j]]];
    }
  }
  return best;
}

function correlation(a, b) {
  const mean = (v) => v.reduce((s, x) => s + x, 0) / v.length;
  const [ma, mb] = [mean(a), mean(b)];
  const sum = (f) => a.reduce((s, _, i) => s + f(i), 0);
  const scale = Math.sqrt(sum((i) => (a[i] - ma) ** 2) * sum((i) => (b[i] - mb) ** 2));
  return scale ? sum((i) => (a[i] - ma) * (b[i] - mb)) / scale : 0;
}

function selectPrompt(id) {
  state.prompt = id;
  history.replaceState(null, "", `#compare=${encodeURIComponent(id)}`);
  redraw();
}

function compareCard(label, entry) {
  const { figure, plot } = chartFigure("", null, () =>
    table(
      null,
      ["answer", ...entry.objectives],
      entry.rewards.map((row, n) => [String(n + 1), ...row.map(number)]),
    ),
  );
  const distinct = new Set(entry.rewards.map(String)).size;
  const front = countFront(entry.rewards);
  figure.querySelector("figcaption").replaceChildren(
    el("span", {}, `${entry.rewards.length} answers; reward vectors: ${distinct} different, ${front} on the front`),
  );
  const card = el("article", { class: "card" }, el("h3", {}, swatch(label), " ", label), figure);
  const drawn = entry.picture ? picture(entry.picture) : null;
  card.append(
    el("h4", {}, entry.answers.length > 1 ? `Its first ${entry.answers.length} answers` : "Its first answer"),
    el("div", { class: "picture" }, drawn ?? answerTexts(entry.answers)),
    el("div", { class: "scroll" }, answerTable(entry.objectives, entry.answers, true)),
  );
  return { card, plot };
}

/** The points that no other point beats on these two axes, from left to right, each once. */
function frontOf(points) {
  const distinct = [...new Map(points.map((p) => [p.join(), p])).values()];
  return distinct
    .filter(([x, y]) => !distinct.some(([a, b]) => a >= x && b >= y && (a > x || b > y)))
    .sort((p, q) => p[0] - q[0]);
}

const answerTexts = (answers) =>
  el("ol", {}, answers.map((answer) => el("li", {}, el("pre", {}, answer.text ?? "(missing)"))));

/** Distinct reward vectors that no other answer dominates in all objectives. */
function countFront(all) {
  const rewards = [...new Map(all.map((row) => [String(row), row])).values()];
  const dominates = (a, b) => a.every((v, k) => v >= b[k]) && a.some((v, k) => v > b[k]);
  return rewards.filter((row) => !rewards.some((other) => dominates(other, row))).length;
}

async function drawScatter(plot, label, entry, all, x, y) {
  const [i, j] = [entry.objectives.indexOf(x), entry.objectives.indexOf(y)];
  const counts = new Map();
  for (const row of entry.rewards) {
    const key = `${row[i]},${row[j]}`;
    counts.set(key, { x: row[i], y: row[j], n: (counts.get(key)?.n ?? 0) + 1 });
  }
  const line = (points) => frontOf(points).map(([a, b], order) => ({ x: a, y: b, order }));
  const own = line(entry.rewards.map((row) => [row[i], row[j]]));
  const joint = line(all.map((row) => [row[i], row[j]]));
  const top = Math.max(1, ...all.flat());
  const low = Math.min(0, ...all.flat());
  const scale = { domain: [low, top], nice: false };
  const px = { field: "x", type: "quantitative", title: x, scale, axis: { tickCount: 3, format: "~g" } };
  const py = { field: "y", type: "quantitative", title: y, scale, axis: { tickCount: 3, format: "~g" } };
  const { colour } = look(label);
  const sizes = { range: [30, 420], domain: [1, entry.rewards.length] };
  const step = (values, stroke, dash) => ({
    data: { values },
    mark: { type: "line", interpolate: "step-before", stroke, strokeDash: dash, strokeWidth: 1.5, aria: false },
    encoding: { x: px, y: py, order: { field: "order" } },
  });
  await draw(plot, {
    height: 180,
    layer: [
      step(joint, "var(--faint)", [2, 3]),
      step(own, colour, []),
      {
        data: { values: [...counts.values()] },
        mark: { type: "circle", color: colour, opacity: 0.6, tooltip: false },
        encoding: { x: px, y: py, size: { field: "n", type: "quantitative", legend: null, scale: sizes } },
      },
    ],
  });
  plot.setAttribute("role", "img");
  const words = own.map((p) => `${number(p.x)} and ${number(p.y)}`).join("; ");
  plot.setAttribute("aria-label", `${label}: ${x} across, ${y} up; Pareto front at ${words}`);
}
