"""The frame of the entry points: one readable line, exit statuses, sweeps in other processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig

from vpo_lightning import entry
from vpo_lightning.errors import ConfigError

JOB = """
import sys
from vpo_lightning import entry
from vpo_lightning.errors import ConfigError

class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(one)

def job(cfg):
    if cfg.task.kind == "config":
        raise ConfigError("task.kind=config: cannot work")
    if cfg.task.kind == "fault":
        raise Unpicklable("a fault", 2)
    if cfg.task.kind == "value":
        raise ValueError("a fault of a value")
    if cfg.task.kind == "status":
        return 3
    print("ran", cfg.task.kind, flush=True)

def main():
    return entry.run(job, "score")

if __name__ == "__main__":
    import app
    sys.exit(app.main())
"""
FILES = ("input=a", "output=b")


def job(cfg: DictConfig) -> None:
    """A job in this process, for errors that come before or from it."""
    if cfg.task.kind == "config":
        raise ConfigError("task.kind=config: cannot work")
    print("ran")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an application, and a task of its own for --config-dir."""
    (tmp_path / "app.py").write_text(JOB)
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "own.yaml").write_text("kind: fine\nsub: {size: 1}\n")
    return tmp_path


@pytest.fixture
def app(folder: Path):
    """Runs that application in a process of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return subprocess.run(
            [sys.executable, "app.py", "--config-dir", "conf", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_job_runs_with_the_composed_config_and_leaves_nothing_behind(app, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    done = app("task=own", *FILES)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran fine\n", "")
    after = sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__")
    assert after == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["task=ovn"], "task=ovn: no such choice (did you mean own?); options: eureqa,"),
        (["tsk=own"], "tsk=own: there is no key tsk (did you mean task?); keys: dedup,"),
        (
            ["task.sub.syze=3"],
            "there is no key task.sub.syze (did you mean size?); keys of task.sub",
        ),
        (["task.kind.x=3"], "task.kind.x=3: there is no key task.kind.x"),
        (["+task.kind=3"], "+task.kind: the key exists already; write task.kind=... without the +"),
        (["task.kind=a,b"], "task.kind=a,b: several values need --multirun (-m)"),
        (["task.kind=[a"], "cannot read 'task.kind=[a'"),
        (["task.kind"], "cannot read 'task.kind'"),
        (["~gone"], "'gone' does not exist"),
        (["task.kind=${gone}"], "Interpolation key 'gone' not found"),
        (["task.kind=???"], "task.kind: a value is needed; add task.kind=..."),
        (["task.kind=config"], "task.kind=config: cannot work"),
        (["hydra/launcher=gone"], "hydra/launcher=gone: no such choice"),
        (["--config-name", "gone"], "--config-name gone: no such config; options:"),
        (["--resolve"], "--resolve flag can only be used"),
    ],
)
def test_a_config_error_is_one_line_with_the_key_and_status_2(
    folder, arguments, line, monkeypatch, capsys
):
    flags = [a for a in arguments if a.startswith("--")] and arguments
    given = flags or ["task=own", *FILES, *arguments]
    monkeypatch.chdir(folder)
    status = entry.run(job, "score", ["--config-dir", "conf", *given])
    shown = capsys.readouterr()
    assert status == 2
    assert line in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_the_wrong_key_may_be_the_only_argument(capsys):
    assert entry.run(job, "score", ["tsk=own"]) == 2
    assert capsys.readouterr().err.startswith("tsk=own: there is no key tsk")


def test_a_status_of_the_job_is_that_of_the_command(app):
    assert app("task=own", *FILES, "task.kind=status").returncode == 3


@pytest.mark.parametrize(("kind", "error"), [("fault", "Unpicklable"), ("value", "ValueError")])
def test_a_fault_keeps_its_traceback(app, kind, error):
    done = app("task=own", *FILES, f"task.kind={kind}")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.strip().splitlines()[-1].split(".")[-1].startswith(f"{error}: a fault")


def test_a_config_error_has_a_traceback_on_request(app):
    done = app("task=own", *FILES, "task.kind=config", HYDRA_FULL_ERROR="1")
    assert "Traceback" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("launcher", ["basic", pytest.param("joblib", marks=pytest.mark.slow)])
def test_failing_jobs_of_a_sweep_report_themselves_and_the_others_run(app, launcher):
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    done = app(
        f"hydra/launcher={launcher}", "task=own", *FILES, "task.kind=config,fault,status,fine", "-m"
    )
    assert done.returncode == 2, done.stderr
    assert "ran fine" in done.stdout
    assert "task.kind=config': task.kind=config: cannot work" in done.stderr
    assert "task.kind=fault' failed:" in done.stderr
    assert "Unpicklable: a fault" in done.stderr
    assert "un-serialize" not in done.stderr


def test_help_and_cfg_work(app):
    shown = app("task=own", "--cfg", "job")
    assert shown.returncode == 0
    assert "kind: fine" in shown.stdout
    helped = app("--help")
    assert helped.returncode == 0
    assert "dedup: true" in helped.stdout
