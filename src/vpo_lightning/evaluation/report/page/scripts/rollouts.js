// The rollout browser: run, step, prompt, rollout; text with its answers marked, rewards, credit.

function rolloutBrowser() {
  const place = byId("rollout-view");
  if (!place) return;
  const labels = Object.keys(SAMPLES.rollouts).filter((label) => SAMPLES.rollouts[label].length);
  const chosen = state.rollout;
  if (!labels.includes(chosen.run)) chosen.run = labels[0];
  const groups = SAMPLES.rollouts[chosen.run];
  const steps = [...new Set(groups.map((group) => group.step))];
  if (!steps.includes(chosen.step)) chosen.step = steps.at(-1);
  const here = groups.filter((group) => group.step === chosen.step);
  const group = here.find((one) => one.id === chosen.prompt) ?? here[0];
  chosen.prompt = group.id;
  if (!group.rollouts[chosen.sample]) chosen.sample = 0;
  const pick = (change) => {
    Object.assign(state.rollout, change);
    writeRolloutLink();
    rolloutBrowser();
  };
  byId("rollout-controls").replaceChildren(
    choice("Run", labels.map((label) => [label, label]), chosen.run, (run) => pick({ run })),
    choice("Training step", steps.map((s) => [String(s), String(s)]), String(chosen.step), (s) =>
      pick({ step: Number(s), sample: 0 }),
    ),
    choice("Prompt", here.map((one) => [one.id, promptOption(one)]), group.id, (prompt) => pick({ prompt, sample: 0 })),
  );
  place.replaceChildren(groupStrip(group, pick), rolloutView(group, group.rollouts[chosen.sample]));
}

/** A link to what is shown: #run=...&step=...&prompt=...&rollout=... */
function writeRolloutLink() {
  const { run, step, prompt, sample } = state.rollout;
  const link = new URLSearchParams({ run, step, prompt, rollout: sample + 1 });
  history.replaceState(null, "", `#${link}`);
}

function promptOption(group) {
  const rewards = group.rollouts.map((rollout) => rollout.reward);
  return `${group.id} (reward ${number(Math.min(...rewards))} to ${number(Math.max(...rewards))})`;
}

/** One button for each rollout of the group, with its advantage as a bar up or down. */
function groupStrip(group, pick) {
  const largest = Math.max(...group.rollouts.map((r) => Math.abs(r.advantage)), 1e-9);
  const buttons = group.rollouts.map((rollout, i) => {
    const share = Math.abs(rollout.advantage) / largest;
    const bar = el("i", { class: rollout.advantage < 0 ? "negative" : "", "--v": share });
    return el("li", {}, el(
      "button",
      {
        "aria-label": `Rollout ${i + 1}, advantage ${signed(rollout.advantage)}`,
        "aria-current": String(i === state.rollout.sample),
        onclick: () => {
          pick({ sample: i });
          byId("rollout-view").querySelectorAll(".group button")[i].focus();
        },
      },
      el("span", { class: "bar", "aria-hidden": "true" }, bar),
      signed(rollout.advantage),
    ));
  });
  return el("ul", { class: "group", "aria-label": "Rollouts of the group by advantage" }, buttons);
}

function rolloutView(group, rollout) {
  const facts = [
    ["set reward", number(rollout.reward)],
    ["advantage", signed(rollout.advantage)],
    ["tokens", number(rollout.tokens)],
    ["ended by", rollout.end === "length" ? "the token limit" : rollout.end || "–"],
  ].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  const main = el(
    "div",
    {},
    el("dl", { class: "figures-line" }, facts),
    group.prompt ? promptText(group.prompt) : null,
    el("h3", {}, "Completion"),
    el("div", { class: "completion", tabindex: "0", role: "region", "aria-label": "Completion" }, markedText(rollout)),
    el("h3", {}, "Rewards"),
    el("div", { class: "scroll" }, answerTable(group.objectives, rollout.answers)),
    winnerStrips(group.objectives, rollout.answers),
  );
  const isDrawing = rollout.picture?.[0] === "svg";
  if (!rollout.picture) return el("div", { class: "rollout plain" }, main);
  const key = slotKey(rollout.answers.length);
  const drawn = el("div", { class: "picture" }, el("h3", {}, "Picture"), picture(rollout.picture), key);
  return el("div", { class: isDrawing ? "rollout" : "rollout plain" }, main, drawn);
}

const slotKey = (count) =>
  el("p", { class: "key" }, [...Array(count).keys()].map((i) => slotName(i + 1)));

function promptText(text) {
  return el("details", { class: "prompt" }, el("summary", {}, "Prompt"), el("pre", {}, text));
}

/** The completion with each answer marked where it stands; answers are looked for in order. */
function markedText(rollout) {
  const nodes = [];
  let at = 0;
  rollout.answers.forEach((answer, slot) => {
    const start = answer.text ? rollout.text.indexOf(answer.text, at) : -1;
    if (start < 0) return;
    nodes.push(rollout.text.slice(at, start));
    const name = el("sub", { "aria-label": `answer ${slot + 1}:` }, String(slot + 1));
    nodes.push(el("mark", { class: `slot-${(slot % 8) + 1}` }, name, answer.text));
    at = start + answer.text.length;
  });
  nodes.push(rollout.text.slice(at));
  return nodes;
}

/** Reward matrix as a heat map: answers down, objectives across, the best of a column in bold. */
function answerTable(objectives, answers, isShort = false) {
  const best = objectives.map((_, k) => Math.max(...answers.map((answer) => answer.rewards[k])));
  const hasShares = answers.length > 1 && answers.some((answer) => answer.share !== null);
  const rows = answers.map((answer, slot) => {
    const flags = [
      answer.copy ? "copy" : null,
      answer.text === null ? "missing" : answer.parsed ? null : "unparsed",
    ].filter(Boolean).map((flag) => el("span", { class: "flag" }, flag));
    const cells = answer.rewards.map((v, k) => heatCell(v, number, v > 0 && v === best[k]));
    const share = hasShares ? [heatCell(answer.share, percent)] : [];
    return [el("span", {}, slotName(slot + 1, isShort), flags), ...cells, ...share];
  });
  return table(null, ["", ...objectives, ...(hasShares ? ["wins"] : [])], rows, { class: "heat" });
}
