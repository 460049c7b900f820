"""Downloads pip's own wheel from the index that pip would use, for a Python without pip."""

import configparser
import hashlib
import html
import os
import re
import ssl
import urllib.parse
import urllib.request
from pathlib import Path

LINK = re.compile(r"<a\s([^>]*)>", re.IGNORECASE)
WHEEL = re.compile(r"/(pip-(\d+(?:\.\d+)*)-py3-none-any\.whl)$")


def download_pip_wheel(folder: Path) -> Path:
    """Downloads the newest pip wheel into a folder.

    Raises:
        ValueError: The index cannot be reached, has no wheel, or sent other bytes than promised.
        OSError: The wheel could not be written.
    """
    index = pip_setting("index-url") or "https://pypi.org/simple"
    page_url = f"{index.rstrip('/')}/pip/"
    page = fetched(page_url).decode()
    url = newest_wheel_url(page, page_url)
    wheel = fetched(url)
    promised = re.search(r"sha256=([0-9a-f]{64})", url)
    if promised and hashlib.sha256(wheel).hexdigest() != promised[1]:
        raise ValueError(f"{url} has another checksum than {page_url} promises")
    path = folder / Path(urllib.parse.urlsplit(url).path).name
    path.write_bytes(wheel)
    return path


def newest_wheel_url(page: str, page_url: str) -> str:
    """The address of the newest pip wheel that is not yanked on a page of a simple index (PEP 503).

    Raises:
        ValueError: The page links to none.
    """
    newest: tuple[tuple[int, ...], str] = ((), "")
    for attributes in LINK.findall(page):
        href = re.search(r'href\s*=\s*"([^"]*)"', attributes, re.IGNORECASE)
        if href is None or "data-yanked" in attributes:
            continue
        url = urllib.parse.urljoin(page_url, html.unescape(href[1]))
        if name := WHEEL.search(urllib.parse.urlsplit(url).path):
            newest = max(newest, (tuple(map(int, name[2].split("."))), url))
    if not newest[1]:
        raise ValueError(f"{page_url} links to no pip wheel")
    return newest[1]


def fetched(url: str) -> bytes:
    """The body of an address.

    Raises:
        ValueError: It could not be fetched; the message says why.
    """
    context = ssl.create_default_context(cafile=pip_setting("cert"))
    try:
        with urllib.request.urlopen(url, timeout=30, context=context) as response:
            return response.read()
    except OSError as error:
        raise ValueError(f"{url} could not be fetched ({error}); check the network") from error


def pip_setting(key: str) -> str | None:
    """The value that pip would use: a PIP_* variable, else from the user's or machine's files."""
    variable = os.environ.get("PIP_" + key.upper().replace("-", "_"))
    if variable:
        return variable
    parser = configparser.RawConfigParser()
    parser.read(config_files())
    for section in ("install", "global"):
        if parser.has_option(section, key):
            return parser.get(section, key)
    return None


def config_files() -> list[Path]:
    """Where pip keeps its settings; a later file wins."""
    chosen = os.environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    machine = os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    home = Path.home()
    user = Path(os.environ.get("XDG_CONFIG_HOME", home / ".config"))
    files = [Path(folder) / "pip" / "pip.conf" for folder in machine]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", user / "pip" / "pip.conf"]
    return [*files, Path(chosen)] if chosen else files
