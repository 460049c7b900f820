"""vpo-report --watch: for this machine's own browser only, and fresh while training runs."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.report.server import ADDRESS, LivePage, make_server


class Folder:
    """A run folder, and how often its page was made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.builds = 0
        self.port = 0

    def build(self) -> str:
        self.builds += 1
        return f"page {self.builds}"

    def change(self) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write("{}\n")

    def get(self, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection(ADDRESS, self.port, timeout=10)
        connection.request(method, path, headers={"Host": host or f"{ADDRESS}:{self.port}"})
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    folder.change()
    server = make_server(LivePage([tmp_path], lambda: folder.build()), 0)
    folder.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder
    server.shutdown()
    server.server_close()


def test_the_page_is_made_anew_when_a_run_goes_on_and_only_then(served: Folder) -> None:
    assert served.get("/") == (200, "page 1")
    before = served.get("/version")
    assert served.get("/") == (200, "page 1")
    served.change()
    assert served.get("/version") != before
    assert served.get("/") == (200, "page 2")


def test_a_search_that_is_given_itself_is_followed_too(tmp_path: Path) -> None:
    page = LivePage([tmp_path], lambda: "page")
    before = page.newest()
    (tmp_path / "best_of_n").mkdir()
    (tmp_path / "best_of_n" / "result.json").write_text("{}")
    assert page.newest() != before


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "", "[::1]"])
def test_other_hosts_are_refused(host: str, served: Folder) -> None:
    assert served.get("/", host.format(port=served.port) or " ")[0] == 403
    assert served.builds == 0


def test_localhost_is_not_refused(served: Folder) -> None:
    assert served.get("/", f"localhost:{served.port}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/metrics.jsonl", "/../metrics.jsonl", "/%2e%2e/etc/passwd", "//etc/passwd", "/?a"]
)
def test_no_path_reaches_a_file(path: str, served: Folder) -> None:
    assert served.get(path)[0] == 404


def test_the_page_cannot_be_changed(served: Folder) -> None:
    assert served.get("/", method="POST")[0] == 501


def test_a_folder_that_has_gone_is_said(served: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise ConfigError("no run here")

    monkeypatch.setattr(served, "build", gone)
    assert served.get("/version") == (503, "no run here\n")


def test_only_this_machine_is_listened_to(tmp_path: Path) -> None:
    server = make_server(LivePage([tmp_path], str), 0)
    assert server.server_address[0] == "127.0.0.1"
    server.server_close()
