#!/usr/bin/env bash
# Fetches the plotting library that reports embed, at the versions named here, from the npm registry:
#   bash scripts/vendor_vega.sh
# vega and vega-lite are the published builds. vega-interpreter (charts without eval, for the page's strict
# content policy) is published as a module only; its two module lines become plain assignments.
set -euo pipefail
vega=6.4.0 vega_lite=6.4.3 interpreter=2.3.2 d3_array=3.2.4  # D3 for its licence: vega.min.js holds parts
target="$(cd "$(dirname "$0")/.." && pwd)/src/vpo_lightning/evaluation/report/vendor"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for package in "vega@$vega" "vega-lite@$vega_lite" "vega-interpreter@$interpreter" "d3-array@$d3_array"; do
  tar -xzf "$(npm pack --silent "$package")"
  mv package "${package%@*}"
done
without_map() { sed '/^\/\/# sourceMappingURL=/d' "$1"; }
without_map vega/build/vega.min.js >"$target/vega.min.js"
without_map vega-lite/build/vega-lite.min.js >"$target/vega-lite.min.js"
{
  echo '(function () {'
  without_map vega-interpreter/build/vega-interpreter.js | sed \
    -e "s/^import { \(.*\) } from 'vega-util';/const { \1 } = vega;/" \
    -e 's/^export { expression as expressionInterpreter };/vega.expressionInterpreter = expression;/'
  echo '})();'
} >"$target/vega-interpreter.js"
for package in vega vega-lite vega-interpreter d3-array; do
  printf '%s %s\n\n' "$package" "$(sed -n 's/^  "version": "\(.*\)",/\1/p' "$package/package.json")"
  cat "$package/LICENSE"
  printf '\n'
done >"$target/LICENSES.txt"
ls -l "$target"
