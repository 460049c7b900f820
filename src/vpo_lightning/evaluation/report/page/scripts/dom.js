// Elements from data. Every text becomes a text node: nothing here or elsewhere parses markup.

const byId = (id) => document.getElementById(id);

/** An element; attributes named on... are listeners, those named --... are style variables. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** A labelled choice; calls back with the chosen value. */
function choice(label, options, value, onChange) {
  const select = el("select", { "aria-label": label, onchange: () => onChange(select.value) });
  for (const [key, text] of options) {
    select.append(el("option", { value: key, selected: key === value }, text));
  }
  return el("label", {}, label, select);
}

/** A table with a row of headings; the first cell of each row is its heading. */
function table(caption, head, rows, attributes = {}) {
  const cell = (value) => (value instanceof Node ? value : el("td", {}, String(value)));
  return el(
    "table",
    attributes,
    caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, breakable(title))))),
    el(
      "tbody",
      {},
      rows.map(([first, ...rest]) =>
        el("tr", {}, el("th", { scope: "row" }, first), rest.map(cell)),
      ),
    ),
  );
}

/** A name that may be broken after an underscore. */
const breakable = (name) =>
  String(name).split(/(?<=_)/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));

/** Lets the browser draw and answer before the next piece of work. */
const pause = () => new Promise((resolve) => setTimeout(resolve, 0));
