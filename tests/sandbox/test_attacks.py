import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.sandbox.attacks.attack import PREAMBLE
from tests.sandbox.attacks.cheats import CHEATS
from tests.sandbox.attacks.corners import CORNERS
from tests.sandbox.attacks.files import FILES
from tests.sandbox.attacks.functions import FUNCTIONS
from tests.sandbox.attacks.network import NETWORK
from tests.sandbox.attacks.processes import PROCESSES
from tests.sandbox.attacks.resources import RESOURCES
from tests.sandbox.processes import descendants, wait_until
from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.tasks.livecodebench.comparison import equal_value

ATTACKS = {**FILES, **PROCESSES, **NETWORK, **RESOURCES, **CHEATS, **CORNERS}
SECRET = "SECRET-OF-AN-EARLIER-TEST"
VICTIM = "open('/tmp/x', 'w').write(input()); print(open('/tmp/x').read(), sum(range(10)))"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(slots=1) as warm:
        yield warm


@pytest.fixture
def target(monkeypatch):
    """A host with something to steal (not in /tmp, which every test has for itself)."""
    monkeypatch.setenv("VPO_ATTACK_TARGET", "1")
    folder = Path(tempfile.mkdtemp(prefix="vpo-target-", dir="/var/tmp"))
    marker = folder / "marker"
    marker.write_text("secret")
    unix = str(folder / "socket")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as file:
        file.bind(unix)
        file.listen()
        yield {
            "marker": str(marker),
            "folder": str(folder),
            "pid": os.getpid(),
            "port": tcp.getsockname()[1],
            "unix": unix,
            "variable": "VPO_ATTACK_TARGET",
        }
    found, content = sorted(os.listdir(folder)), marker.read_text()
    shutil.rmtree(folder)
    assert (found, content) == (["marker", "socket"], "secret")


def check_unharmed(sandbox: Sandbox, before: list[int]) -> None:
    (outcome,) = sandbox.run_tests(VICTIM, ["unharmed"])
    assert (outcome.status, outcome.stdout) == ("ok", b"unharmed 45\n")
    assert sandbox.counts["lost"] == 0
    assert descendants(os.getpid()) == before


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_held_and_leaves_nothing(sandbox, target, name, monkeypatch):
    attack = ATTACKS[name]
    monkeypatch.setattr(sandbox, "test_seconds", attack.seconds)
    sandbox.run_tests(VICTIM, [SECRET])  # what it would like to find
    before = descendants(os.getpid())
    start = time.monotonic()
    outcomes = sandbox.run_tests(PREAMBLE + attack.program, [json.dumps(target)] * attack.times)
    assert time.monotonic() - start < attack.times * attack.seconds + 2
    for outcome in outcomes:
        if outcome.status == "ok":
            assert outcome.stdout == (b"" if attack.statuses == ("silent",) else b"held\n")
            assert {"ok", "silent"} & set(attack.statuses)
        else:
            assert outcome.status in attack.statuses
    check_unharmed(sandbox, before)


@pytest.mark.parametrize("name", [name for name in ATTACKS if ATTACKS[name].escapes_unprotected])
def test_an_attack_works_where_nothing_protects(target, name):
    command = [sys.executable, "-c", PREAMBLE + ATTACKS[name].program]
    ended = subprocess.run(command, input=json.dumps(target), capture_output=True, text=True)
    assert ended.stdout.startswith("ESCAPED"), ended.stderr
    Path(target["folder"], "vpo-attack").unlink(missing_ok=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_returned_value_passes_for_another(sandbox, name):
    before = descendants(os.getpid()) or None
    (outcome,) = sandbox.run_tests(FUNCTIONS[name], ["1"], function="f")
    assert not equal_value(outcome.stdout.decode(), "42")
    check_unharmed(sandbox, before or descendants(os.getpid()))


def test_a_batch_of_endless_programs_ends_in_time():
    with Sandbox(slots=2, test_seconds=6.0, answer_seconds=1.5) as sandbox:
        sandbox.run_tests("print(1)", ["", ""])
        start = time.monotonic()
        outcomes = sandbox.run_tests("while True: pass", [""] * 16)
        assert time.monotonic() - start < 1.5 + 2
    assert [outcome.status for outcome in outcomes] == ["timeout"] * 16


def test_nothing_is_left_when_the_sandbox_closes():
    before = descendants(os.getpid())
    with Sandbox(slots=2) as sandbox:
        sandbox.run_tests("print(1)", ["", "", ""])
        inside = [pid for pid in descendants(os.getpid()) if pid not in before]
        assert len(inside) >= 4
    wait_until(lambda: not [pid for pid in inside if os.path.exists(f"/proc/{pid}")])
