"""Getting pip for a Python that has none, from the index that pip would use."""

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.pip_wheel import download_pip_wheel, newest_wheel_url, pip_setting

PAGE_URL = "https://index.example/simple/pip/"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PIP_INDEX_URL", "PIP_CERT", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a simple index that a local server shows and pip is configured to use."""
    folder = tmp_path / "index" / "simple" / "pip"
    folder.mkdir(parents=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield folder
        server.shutdown()


def write_page(folder: Path, wheel: bytes, promised: bytes) -> None:
    name = "pip-30.1-py3-none-any.whl"
    digest = hashlib.sha256(promised).hexdigest()
    (folder / name).write_bytes(wheel)
    (folder / "index.html").write_text(f'<a href="{name}#sha256={digest}">{name}</a>')


def test_newest_wheel_is_by_version_not_by_name() -> None:
    names = ["pip-9.0.1-py3-none-any.whl", "pip-26.3-py3-none-any.whl", "pip-26.10.tar.gz"]
    page = "".join(f'<a href="../../files/{name}">{name}</a>' for name in names)
    expected = "https://index.example/files/pip-26.3-py3-none-any.whl"
    assert newest_wheel_url(page, PAGE_URL) == expected


def test_yanked_wheel_is_passed_over() -> None:
    page = (
        '<a href="pip-26.2-py3-none-any.whl">a</a>'
        '<a href="pip-26.3-py3-none-any.whl" data-yanked="broken">b</a>'
    )
    assert newest_wheel_url(page, PAGE_URL).endswith("/pip-26.2-py3-none-any.whl")


def test_page_without_a_wheel_is_refused() -> None:
    with pytest.raises(ValueError, match="links to no pip wheel"):
        newest_wheel_url("<html></html>", PAGE_URL)


def test_wheel_is_downloaded_from_the_configured_index(index: Path, tmp_path: Path) -> None:
    write_page(index, b"a wheel", promised=b"a wheel")
    path = download_pip_wheel(tmp_path)
    assert path.name == "pip-30.1-py3-none-any.whl"
    assert path.read_bytes() == b"a wheel"


def test_wheel_with_another_checksum_is_refused(index: Path, tmp_path: Path) -> None:
    write_page(index, b"an altered wheel", promised=b"a wheel")
    with pytest.raises(ValueError, match="another checksum"):
        download_pip_wheel(tmp_path)


def test_unreachable_index_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9/simple/pip/ could not be fetched"):
        download_pip_wheel(tmp_path)


def test_settings_of_the_user_go_before_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for place, index in (("XDG_CONFIG_DIRS", "machine"), ("XDG_CONFIG_HOME", "user")):
        file = tmp_path / place / "pip" / "pip.conf"
        file.parent.mkdir(parents=True)
        file.write_text(f"[global]\nindex-url = https://{index}.example/simple\n")
    assert pip_setting("index-url") == "https://user.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example/simple")
    assert pip_setting("index-url") == "https://variable.example/simple"
