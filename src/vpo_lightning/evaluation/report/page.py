"""The report as one HTML file: data, styles, scripts and the plotting library inside it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_PACKAGE = "vpo_lightning.evaluation.report"
_LIBRARIES = ("vega.min.js", "vega-lite.min.js", "vega-interpreter.js")
_SCRIPTS = (
    *("dom.js", "format.js", "pictures.js", "charts.js", "lines.js"),
    *(
        "training.js",
        "answers.js",
        "compare.js",
        "slots.js",
        "search.js",
        "strips.js",
        "rollouts.js",
        "page.js",
    ),
)
_STYLES = ("base.css", "charts.css", "browser.css", "media.css")


def render(data: Mapping[str, Any], samples: str, view: Mapping[str, Any], *, live: bool) -> str:
    """The page.

    Its content policy allows nothing but the scripts and styles that it holds, by their hashes: no
    network, no eval, no script or style from data.

    Args:
        data: What the charts draw; written as JSON that cannot end its element.
        samples: Base64 text of the compressed samples.
        view: What the template writes itself: headline, tables, notes.
        live: Whether the page asks its server for a newer one.
    """
    environment = Environment(
        loader=PackageLoader(_PACKAGE, "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    libraries = [_text("vendor", name) for name in _LIBRARIES]
    body = "\n".join(_text("page", "scripts", name) for name in _SCRIPTS)
    scripts = [*libraries, f'"use strict";\n(() => {{\n{body}\n}})();\n']
    style = "\n".join(_text("page", "styles", name) for name in _STYLES)
    return environment.get_template("report.html").render(
        **view,
        live=live,
        policy=content_policy(scripts, style, live=live),
        style=style,
        scripts=scripts,
        data=json_text(data),
        samples=samples,
        licenses=_text("vendor", "LICENSES.txt"),
    )


def content_policy(scripts: Sequence[str], style: str, *, live: bool) -> str:
    """The Content-Security-Policy of a page with exactly these scripts and this style."""
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(_hash(script) for script in scripts),
        "style-src": _hash(style),
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def json_text(value: Any) -> str:
    """JSON that is safe inside a script element: no ``<`` that could end it or open a comment.

    Numbers that JSON does not have (NaN, infinities) become null.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _text(*parts: str) -> str:
    return resources.files(_PACKAGE).joinpath(*parts).read_text(encoding="utf-8")
