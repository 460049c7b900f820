"""What a written page holds, read the way a browser reads it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self.policy = ""
        self.links: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "meta" and named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"] or ""
        if tag == "script":
            self.scripts.append((named, ""))
        if tag in ("script", "style"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self._inside == "style":
            self.styles.append(data)
        else:
            self.texts.append(data)


class Page:
    """A report, parsed."""

    def __init__(self, path: Path) -> None:
        self.html = path.read_text(encoding="utf-8")
        parsed = _Page()
        parsed.feed(self.html)
        self.policy = dict(rule.split(" ", 1) for rule in parsed.policy.split("; "))
        self.links = parsed.links
        self.text = re.sub(r"\s+", " ", " ".join(parsed.texts))
        self.styles = parsed.styles
        self.scripts = [text for named, text in parsed.scripts if "type" not in named]
        by_id = {named["id"]: text for named, text in parsed.scripts if "id" in named}
        self.data: dict[str, Any] = json.loads(by_id["data"])
        packed = gzip.decompress(base64.b64decode(by_id["samples"]))
        self.samples: dict[str, Any] = json.loads(packed)


def hashed(text: str) -> str:
    """How a content policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
