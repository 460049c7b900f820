// Numbers as the page writes them.

/** Three decimals below 10, thousands with separators. */
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.001) return value.toExponential(1).replace("-", "−");
  const digits = size < 10 ? 3 : size < 1000 ? 1 : 0;
  const text = value.toLocaleString("en", { maximumFractionDigits: digits });
  return text.replace("-", "−");
}

const percent = (value) =>
  value === null || value === undefined ? "–" : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}%`;

const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));
