// Which slot of a chain is the best answer, under which weights.

const slotName = (slot, isShort = false) =>
  el("span", { class: `slot-name slot-${((slot - 1) % 8) + 1}` }, isShort ? String(slot) : `answer ${slot}`);

function slotCards() {
  const place = byId("slots-cards");
  if (!place) return [];
  const labels = Object.keys(DATA.slots).filter((label) => !state.hidden.has(label));
  place.replaceChildren();
  return labels.map((label) => {
    const witness = DATA.slots[label];
    const { figure, plot } = chartFigure("", "Share of weights won, over training", () =>
      table(null, ["step", ...witness.slots.map((row) => `answer ${row.slot}`)],
        witness.steps.map((step, i) => [number(step), ...witness.shares[i].map(percent)])),
    );
    const card = el("article", { class: "card" }, el("h3", {}, swatch(label), " ", label), figure);
    card.append(slotTable(witness), winnerLine(witness.winners));
    if (witness.objectives?.length > 1) card.append(slotMap(witness));
    place.append(card);
    return () => drawShares(plot, label, witness);
  });
}

async function drawShares(plot, label, witness) {
  const rows = witness.steps.flatMap((step, i) =>
    witness.shares[i].map((share, slot) => ({ step, share, slot: `answer ${slot + 1}`, order: slot })),
  );
  const slots = witness.slots.map((row) => `answer ${row.slot}`);
  await draw(plot, {
    height: 120,
    data: { values: rows },
    mark: witness.steps.length > 1 ? { type: "area", opacity: 0.85 } : { type: "bar" },
    encoding: {
      x: { field: "step", type: "quantitative", title: "step", scale: { nice: false, zero: false } },
      y: { field: "share", type: "quantitative", title: null, stack: "normalize", axis: { format: "~%" } },
      color: {
        field: "slot", type: "nominal", legend: null,
        scale: { domain: slots, range: slots.map((_, i) => `var(--slot-${(i % 8) + 1})`) },
      },
      order: { field: "order" },
    },
  });
  const ends = witness.slots.map((row) => `answer ${row.slot} ${percent(row.share)}`).join(", ");
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${label}: share of weights won at the end: ${ends}`);
}

function slotTable(witness) {
  return table("At the end of training", ["", "wins", "copies", "unparsed"], witness.slots.map((row) => [
    slotName(row.slot, true),
    el("td", {}, percent(row.share), row.is_dead ? el("span", { class: "flag" }, "dead") : null),
    percent(row.copies),
    percent(row.unparsed),
  ]));
}

/** How many slots of a chain win something: a set whose first answer wins all is no set. */
function winnerLine(winners) {
  const parts = winners.map((share, i) => `${i + 1} in ${percent(share)} of chains`).join(", ");
  return el("p", { class: "small" }, `Answers that win something: ${parts}.`);
}

function slotMap(witness) {
  const rows = witness.map.map((row, slot) => [slotName(slot + 1, true), ...row.map((v) => heatCell(v, percent))]);
  const caption = "Wins by the objective that the weights stress";
  return el("div", { class: "scroll" }, table(caption, ["", ...witness.objectives], rows, { class: "heat" }));
}

/** A cell whose depth of colour is its value from 0 to 1; the value stands in it too. */
function heatCell(value, format = number, isStrong = false) {
  const depth = Math.min(Math.max(value ?? 0, 0), 1);
  return el("td", { class: isStrong ? "cell strong" : "cell", "--v": depth }, format(value));
}
