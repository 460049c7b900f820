"""The wheel: complete, and usable far from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Where each folder of the repository is installed.
PLACES = {
    "src/vpo_lightning": "vpo_lightning",
    "conf": "vpo_lightning/conf",
    "tasks": "vpo_lightning/tasks",
}
PROJECT_FILES = ["pyproject.toml", "setup.py", "README.md", "LICENSE"]
COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the wheel is built from, because a build leaves files beside its sources."""
    copy = tmp_path_factory.mktemp("sources")
    for folder in PLACES:
        shutil.copytree(ROOT / folder, copy / folder, ignore=NOT_SOURCES)
    for name in PROJECT_FILES:
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
    subprocess.run([*build, sources], check=True, capture_output=True)
    (path,) = folder.glob("vpo_lightning-*-py3-none-any.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; the dependencies are those of this Python."""
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(symlinks=True).create(folder)
    python = folder / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", wheel]
    pip = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    version = "python{}.{}".format(*sys.version_info)
    # A path in a .pth file does not run the .pth files there, so the checkout stays invisible.
    dependencies = folder / "lib" / version / "site-packages" / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib"))
    return folder


def run_outside(environment: Path, folder: Path, *command: str) -> str:
    """The output of a command of the environment, run in a folder outside the checkout."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    program, *arguments = command
    done = subprocess.run(
        [environment / "bin" / program, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("folder", PLACES)
def test_wheel_holds_every_file_of(folder: str, sources: Path, wheel: Path) -> None:
    files = [path for path in (sources / folder).rglob("*") if path.is_file()]
    expected = {f"{PLACES[folder]}/{path.relative_to(sources / folder)}" for path in files}
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_wheel_imports_from_its_own_environment(environment: Path, tmp_path: Path) -> None:
    program = "import vpo_lightning.tasks as tasks; print(tasks.__file__)"
    place = run_outside(environment, tmp_path, "python", "-c", program)
    assert Path(place.strip()).is_relative_to(environment)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_installed_command_shows_its_help(command: str, environment: Path, tmp_path: Path) -> None:
    assert run_outside(environment, tmp_path, command, "--help").strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_installed_package_trains(environment: Path, tmp_path: Path) -> None:
    run_outside(environment, tmp_path, "vpo-train", "experiment=smoke")
    assert list(tmp_path.rglob("summary.json"))
