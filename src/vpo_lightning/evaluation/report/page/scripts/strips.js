// Which answer wins as the weight moves from one objective to another.

const STRIP_POINTS = 100;
const MOST_STRIPS = 6;

/** One strip for each pair of objectives between which the winner changes; null if none does. */
function winnerStrips(objectives, answers) {
  if (answers.length < 2) return null;
  const rows = [];
  for (let i = 0; i < objectives.length; i += 1) {
    for (let j = i + 1; j < objectives.length && rows.length < MOST_STRIPS; j += 1) {
      const runs = winnersBetween(answers.map((answer) => answer.rewards), i, j);
      if (runs.length > 1) rows.push([objectives[i], strip(runs, objectives[i], objectives[j]), objectives[j]]);
    }
  }
  if (!rows.length) return null;
  return el("div", {}, el("h3", {}, "Which answer wins between two objectives"),
    el("div", { class: "strips" }, rows.flatMap(([from, bar, to]) => [el("span", {}, from), bar, el("span", {}, to)])));
}

/** Stretches of equal winner as all weight moves from objective i to j; ties go to the earlier. */
function winnersBetween(rewards, i, j) {
  const runs = [];
  for (let n = 0; n < STRIP_POINTS; n += 1) {
    const t = (n + 0.5) / STRIP_POINTS;
    const values = rewards.map((row) => (1 - t) * row[i] + t * row[j]);
    const winner = values.indexOf(Math.max(...values));
    if (runs.at(-1)?.winner === winner) runs.at(-1).length += 1;
    else runs.push({ winner, length: 1 });
  }
  return runs;
}

function strip(runs, from, to) {
  const parts = runs.map(({ winner, length }) =>
    el("span", { class: `slot-${(winner % 8) + 1}`, "--v": length }, String(winner + 1)),
  );
  const words = runs.map(({ winner, length }) => `answer ${winner + 1} for ${percent(length / STRIP_POINTS)}`);
  return el("div", { class: "strip", role: "img", "aria-label": `From ${from} to ${to}: ${words.join(", ")}` }, parts);
}
