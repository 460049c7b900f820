import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.sandbox.processes import descendants, wait_until
from vpo_lightning.errors import ConfigError
from vpo_lightning.sandbox.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(slots=1, test_seconds=2.0, packages=["numpy"]) as warm:
        yield warm


def outputs(sandbox: Sandbox, program: str, *stdins: str, function: str | None = None) -> list:
    found = sandbox.run_tests(program, stdins or ("",), function)
    return [(outcome.status, outcome.stdout.decode()) for outcome in found]


def test_outputs_come_in_the_order_of_the_inputs():
    program = "import time\nn = int(input())\ntime.sleep(n / 100)\nprint(n)"
    with Sandbox(slots=4) as sandbox:
        found = outputs(sandbox, program, "9", "5", "1", "0", "3")
    assert found == [("ok", f"{n}\n") for n in (9, 5, 1, 0, 3)]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print(input() + sys.stdin.read())", "a" + "b\nc\n\n"),
        ("print(open(0).read().split())", "['a', 'b', 'c']\n"),
        ("print(sys.stdin.buffer.read())", "b'a\\nb\\nc\\n'\n"),
        ("print(math.gcd(4, 6), Counter('aab').most_common(1), pow(3, 4, 5))", "2 [('a', 2)] 1\n"),
        ("if __name__ == '__main__': print('main')", "main\n"),
        ("print(1); sys.exit(3)", "1\n"),
        ("import threading\nthreading.Thread(target=lambda: print('thread')).start()", "thread\n"),
        ("import atexit\natexit.register(print, 'late')", "late\n"),
        ("import os\nos.write(1, b'a'); print('b')", "ab\n"),
        ("print('\\u00e9\\u4e16')", "\u00e9\u4e16\n"),
        ("import numpy as np\nprint(np.linalg.inv(np.eye(2) * 2).sum())", "1.0\n"),
        ("import asyncio\nasync def f(): print('async')\nasyncio.run(f())", "async\n"),
        ("def f(n): return n and 1 + f(n - 1)\nprint(f(40_000))", "40000\n"),
        ("open('/tmp/x', 'w').write('y'); print(open('x').read())", "y\n"),
        ("stdout.write(stdin.readline())", "a\n"),
        ("print(type(datetime), type(bisect), copy.copy([1]))", None),
    ],
)
def test_ordinary_programs_run(sandbox, program, expected):
    ((status, written),) = outputs(sandbox, program, "a\nb\nc\n")
    assert status == "ok"
    assert expected is None or written == expected


@pytest.mark.parametrize(
    "program",
    ["1 / 0", "def f(:", "\0", "print(1)\nassert False", "import os\nos._exit(7)", "\ud800"],
)
def test_an_uncaught_error_is_an_error_without_output(sandbox, program):
    assert outputs(sandbox, program) == [("error", "")]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("def f(a, b): return [a, b, {'k': (a == 1)}]", '[1, [2], {"k": true}]'),
        ("class Solution:\n  def f(self, a, b): return a", "1"),
        ("def f(a, b): print('noise'); return None", "null"),
        ("if __name__ == '__main__': 1 / 0\ndef f(a, b): return 1.5", "1.5"),
        ("import numpy as np\ndef f(a, b): return [np.int64(3), np.float64(0.5)]", "[3, 0.5]"),
    ],
)
def test_a_function_is_called_with_json_values(sandbox, program, expected):
    assert outputs(sandbox, program, "1\n[2]\n", function="f") == [("ok", expected)]


@pytest.mark.parametrize(
    "program", ["def g(): pass", "def f(a): return (1, 2)", "def f(a): return {1: 2}", "f = 3"]
)
def test_what_is_no_json_value_is_an_error(sandbox, program):
    assert outputs(sandbox, program, "1", function="f") == [("error", "")]


def test_large_inputs_and_outputs_pass(sandbox):
    text = "x" * 3_000_000
    assert outputs(sandbox, "print(input())", text) == [("ok", text + "\n")]


def test_memory_within_the_limit_can_be_used_and_beyond_it_cannot(sandbox, monkeypatch):
    monkeypatch.setattr(sandbox, "test_seconds", 20.0)  # a busy machine clears memory slowly
    assert outputs(sandbox, "print(len(bytearray(600 << 20)))")[0][0] == "ok"
    assert outputs(sandbox, "print(len(bytearray(1100 << 20)))")[0][0] == "error"


def test_deadlines_hold_for_a_test_and_for_an_answer():
    with Sandbox(slots=1, test_seconds=0.3, answer_seconds=0.7) as sandbox:
        sandbox.run_tests("print(1)", [""])
        start = time.monotonic()
        found = outputs(sandbox, "import time\ntime.sleep(float(input()))", "0", "9", "9", "9", "0")
    assert [status for status, _ in found] == ["ok", "timeout", "timeout", "timeout", "timeout"]
    assert time.monotonic() - start < 1.5
    assert sandbox.counts["timeout"] == 4


def test_a_killed_worker_is_replaced_and_its_test_repeated():
    with Sandbox(slots=1, test_seconds=5) as sandbox:
        sandbox.run_tests("print(1)", [""])
        killer = threading.Timer(0.3, kill_workers)
        killer.start()
        assert outputs(sandbox, "import time\ntime.sleep(0.6)\nprint(2)") == [("ok", "2\n")]
        killer.join()
        assert sandbox.counts["lost"] == 0


def test_a_test_whose_workers_die_twice_is_lost_and_counted():
    with Sandbox(slots=1, test_seconds=5) as sandbox:
        sandbox.run_tests("print(1)", [""])
        stop = threading.Event()

        def keep_killing() -> None:
            while not stop.wait(0.2):
                kill_workers()

        killer = threading.Thread(target=keep_killing)
        killer.start()
        found = outputs(sandbox, "import time\ntime.sleep(4)")
        stop.set()
        killer.join()
        assert found == [("lost", "")]
        assert sandbox.counts["lost"] == 1
        assert outputs(sandbox, "print(3)") == [("ok", "3\n")]


def test_a_worker_that_hangs_is_replaced_within_two_seconds_of_the_deadline():
    with Sandbox(slots=1, test_seconds=0.5) as sandbox:
        sandbox.run_tests("print(1)", [""])
        for pid in descendants(os.getpid()):
            os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        assert outputs(sandbox, "print(2)") == [("lost", "")]
        assert time.monotonic() - start < 0.5 + 2
        assert outputs(sandbox, "print(3)") == [("ok", "3\n")]


def kill_workers() -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_several_threads_share_a_sandbox():
    with Sandbox(slots=2) as sandbox:
        found: dict[int, list] = {}

        def work(number: int) -> None:
            found[number] = outputs(sandbox, f"print({number})", *[""] * 5)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {n: [("ok", f"{n}\n")] * 5 for n in range(6)}


def test_a_forked_process_starts_its_own_workers():
    with Sandbox(slots=1) as sandbox:
        assert outputs(sandbox, "print(1)") == [("ok", "1\n")]
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        child = context.Process(target=lambda: results.put(outputs(sandbox, "print(2)")))
        child.start()
        assert results.get() == [("ok", "2\n")]
        child.join()
        assert outputs(sandbox, "print(3)") == [("ok", "3\n")]


def test_a_copy_sent_to_another_process_works():
    with Sandbox(slots=1, test_seconds=3.0) as sandbox:
        sandbox.run_tests("print(1)", [""])
        with pickle.loads(pickle.dumps(sandbox)) as copy:
            assert copy.test_seconds == 3.0
            assert outputs(copy, "print(2)") == [("ok", "2\n")]


def test_workers_end_with_a_killed_process():
    program = (
        "from vpo_lightning.sandbox.sandbox import Sandbox; import time\n"
        "s = Sandbox(slots=2); s.run_tests('print(1)', ['', '', '']); print('ready', flush=True)\n"
        "s.run_tests('while True: pass', ['', ''])"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        workers = descendants(process.pid)
        assert len(workers) >= 6
        process.kill()
    wait_until(lambda: not [pid for pid in workers if os.path.exists(f"/proc/{pid}")])


def test_a_program_that_forgets_to_close_ends_by_itself():
    program = (
        "from vpo_lightning.sandbox.sandbox import Sandbox\n"
        "s = Sandbox(slots=2); print(s.run_tests('print(1)', [''])[0].status)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=20)
    assert (ended.returncode, ended.stdout) == (0, b"ok\n")


def test_a_missing_bubblewrap_is_refused_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for use in (Sandbox().check, lambda: Sandbox().run_tests("print(1)", [""])):
        with pytest.raises(ConfigError, match=r"task\.sandbox.*apt-get install bubblewrap"):
            use()


def test_a_bubblewrap_that_cannot_isolate_is_refused_with_its_reason(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to creating' >&2\nexit 1"
    )
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"cannot isolate here: bwrap: No permissions.*guard"):
        Sandbox().check()


def test_a_bubblewrap_that_does_not_isolate_is_refused(monkeypatch, tmp_path):
    script = f"""#!/bin/bash
arguments=()
for argument in "$@"; do
  [ "$argument" = --chdir ] && arguments+=(--ro-bind /etc /etc)
  arguments+=("$argument")
done
exec {shutil.which("bwrap")} "${{arguments[@]}}"
"""
    (tmp_path / "bwrap").write_text(script)
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match="does not isolate here: it can read a file of the host"):
        Sandbox().check()


def test_guard_warns_and_keeps_limits(caplog):
    with Sandbox(backend="guard", slots=1, test_seconds=0.5) as sandbox:
        assert outputs(sandbox, "print(input())", "1") == [("ok", "1\n")]
        assert outputs(sandbox, "while True: pass") == [("timeout", "")]
        assert outputs(sandbox, "bytearray(2 << 30)") == [("error", "")]
        assert outputs(sandbox, "import os\nos.fork()") == [("error", "")]
        assert outputs(sandbox, "print('x' * (9 << 20))") == [("error", "")]
    assert "task.sandbox.backend=guard" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "docker"}, r"backend='docker': expected one of .*bubblewrap.*guard"),
        ({"slots": 0}, "slots=0: expected a whole number of at least 1"),
        ({"test_seconds": "fast"}, "test_seconds='fast': expected a number of at least"),
        ({"memory_mb": 1.5}, "memory_mb=1.5: expected a whole number"),
        ({"packages": ["no-such-package"]}, "packages: 'no-such-package' is not installed"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"task.sandbox.{message}"):
        Sandbox(**settings).check()


@pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists(SYSTEM_PYTHON), reason="needs root and a system Python"
)
def test_an_ordinary_user_can_isolate_too(tmp_path):
    """The tests run as that user already where they do not run as root."""
    version = subprocess.check_output(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"]
    )
    if version.decode().strip() < "(3, 11)":
        pytest.skip("the system Python is older than 3.11")
    shutil.copytree(ROOT / "src" / "vpo_lightning" / "sandbox", tmp_path / "vpo_lightning/sandbox")
    for name in ("__init__.py", "errors.py"):
        shutil.copy(ROOT / "src" / "vpo_lightning" / name, tmp_path / "vpo_lightning" / name)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    program = (
        "from vpo_lightning.sandbox.sandbox import Sandbox\n"
        "with Sandbox(slots=1) as s:\n"
        "    s.check(); print(s.run_tests('print(int(input()) + 1)', ['1'])[0].stdout)\n"
    )
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", SYSTEM_PYTHON]
    ended = subprocess.run(
        [*command, "-c", program],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "b'2\\n'\n", ended.stderr
