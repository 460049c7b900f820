import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from vpo_lightning.sandbox.sandbox import Sandbox

TESTS = 500
PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"
INPUTS = [f"{i} {i + 1}\n" for i in range(TESTS)]
OUTPUTS = [f"{2 * i + 1}\n" for i in range(TESTS)]
POOL = Path(__file__).with_name("unprotected_pool.py")


@pytest.fixture
def one_core():
    """Pins this process, and so all it starts, to one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


def processor_seconds() -> float:
    """Processor time of this process and all it started: other work on the core does not count."""
    ours = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            for child in children.read_text().split():
                waiting.append(int(child))
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))  # its own, and of those it waited for
    return sum(u.ru_utime + u.ru_stime for u in ours) + ticks / os.sysconf("SC_CLK_TCK")


def unprotected_seconds() -> float:
    command = [sys.executable, "-S", str(POOL)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pool:
        assert pool.stdin is not None
        assert pool.stdout is not None
        written = []
        start = 0.0
        for text in ["1 2\n", *INPUTS]:
            pool.stdin.write((json.dumps([PROGRAM, text]) + "\n").encode())
            pool.stdin.flush()
            written.append(json.loads(pool.stdout.readline()))
            start = start or processor_seconds()  # the first one is the start of the pool
        seconds = processor_seconds() - start
        pool.stdin.close()
    assert written[1:] == OUTPUTS
    return seconds


@pytest.mark.slow
def test_isolation_costs_at_most_half_of_the_tests_per_second(one_core):
    with Sandbox(slots=1) as sandbox:
        sandbox.run_tests(PROGRAM, ["1 2\n"])
        protected, unprotected = [], []
        for _ in range(5):  # in pairs, side by side in time: others use this machine too
            start = processor_seconds()
            outcomes = sandbox.run_tests(PROGRAM, INPUTS)
            protected.append(processor_seconds() - start)
            unprotected.append(unprotected_seconds())
            assert [outcome.stdout.decode() for outcome in outcomes] == OUTPUTS
    rate = TESTS / min(protected)
    ratio = statistics.median(u / p for u, p in zip(unprotected, protected, strict=True))
    print(f"\n{rate:.0f} isolated tests per second on one core, {ratio:.2f} of an unprotected pool")
    assert ratio >= 0.5
    assert rate >= 100
