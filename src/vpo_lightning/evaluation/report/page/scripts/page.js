// State, the bar of runs, links, and the order in which things are drawn.

let DATA, SAMPLES, RUNS, EXTRA_LABELS;
const state = { hidden: new Set(), rollout: { sample: 0 } };
let drawing = 0;

/** Draws everything anew; a later call ends an earlier one that is still at work. */
async function redraw() {
  const mine = (drawing += 1);
  document.documentElement.dataset.ready = "no";
  runsBar();
  rolloutBrowser();
  const jobs = [...answerCharts(), ...comparison(), ...trainingCharts(), ...slotCards(), ...searchCharts()];
  forgetCharts();
  for (const job of jobs) {
    if (mine !== drawing) return;
    await job();
    await pause();
  }
  document.documentElement.dataset.ready = "yes";
}

/** One button for each run and start policy; pressed ones are shown. */
function runsBar() {
  const bar = byId("runs-bar");
  const labels = [...RUNS.keys(), ...[...EXTRA_LABELS].filter((label) => !label.includes(": "))];
  if (labels.length < 2) return bar.replaceChildren();
  const held = document.activeElement?.dataset?.label;
  bar.replaceChildren(...labels.map((label) =>
    el(
      "button",
      {
        class: "chip",
        "data-label": label,
        "aria-pressed": String(!state.hidden.has(label)),
        title: "Show or hide in all charts",
        onclick: () => {
          if (!state.hidden.delete(label)) state.hidden.add(label);
          redraw();
        },
      },
      swatch(label),
      label,
    ),
  ));
  if (held) [...bar.children].find((chip) => chip.dataset.label === held)?.focus();
}

/** What a link asks for: #run=..., #step=..., #prompt=..., #rollout=..., #compare=... */
function readLink() {
  if (!location.hash.includes("=")) return null;
  const link = new URLSearchParams(location.hash.slice(1));
  if (link.has("compare")) {
    state.prompt = link.get("compare");
    return "compare";
  }
  const wanted = state.rollout;
  if (link.has("run")) wanted.run = link.get("run");
  if (link.has("step")) wanted.step = Number(link.get("step"));
  if (link.has("prompt")) wanted.prompt = link.get("prompt");
  wanted.sample = Math.max(Number(link.get("rollout") || 1) - 1, 0);
  return "rollouts";
}

/** The samples, unpacked by the browser itself. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function start() {
  DATA = JSON.parse(byId("data").textContent);
  SAMPLES = await unpack(byId("samples").textContent);
  RUNS = new Map(DATA.runs.map((run) => [run.label, run]));
  const named = [...DATA.answers, ...DATA.search].flatMap((chart) => Object.keys(chart.series));
  EXTRA_LABELS = new Set(named.filter((label) => !RUNS.has(label)));
  const target = readLink();
  const drawn = redraw();
  if (target) byId(target)?.scrollIntoView();
  await drawn;
}

/** While training runs: asks the server for a newer page and takes its parts over. */
async function follow(version) {
  try {
    const answer = await fetch("version");
    const newer = await answer.text();
    if (answer.ok && newer !== version) {
      const text = await (await fetch(location.pathname)).text();
      const fresh = new DOMParser().parseFromString(text, "text/html");
      const top = window.scrollY;
      byId("page").replaceWith(document.importNode(fresh.getElementById("page"), true));
      await start();
      window.scrollTo({ top, behavior: "instant" });
      version = newer;
    }
  } catch {
    document.title = `(not connected) ${document.title.replace(/^\(not connected\) /, "")}`;
  }
  setTimeout(() => follow(version), 3000);
}

window.addEventListener("hashchange", () => {
  const target = readLink();
  if (target) redraw().then(() => byId(target)?.scrollIntoView());
});
start().then(() => {
  if (byId("page").dataset.live === "yes") fetch("version").then((r) => r.text()).then(follow);
});
