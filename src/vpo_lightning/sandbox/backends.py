"""How a worker process is started: the command line that isolates it, or does not.

``bubblewrap`` shows the worker a file system that holds the interpreter, the libraries it needs,
and nothing else; every kind of namespace is unshared. ``guard`` starts it as an ordinary process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from vpo_lightning.errors import ConfigError

BACKENDS = ("bubblewrap", "guard")

_HERE = Path(__file__).parent
_CODE_FOLDER = Path("/sandbox")
_PACKAGE_FOLDER = Path("/packages")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_SYSTEM_FOLDERS = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64")
_ENVIRONMENT = {
    "HOME": "/tmp",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # the same program ends the same way in every worker
    "PYTHONUTF8": "1",
}


@dataclass(frozen=True)
class Launch:
    """A command and its environment."""

    command: list[str]
    environment: dict[str, str]


def launch(backend: str, limits: dict[str, int], packages: Sequence[str]) -> Launch:
    """How to start a worker whose standard input is the control socket.

    Args:
        backend: One of `BACKENDS`.
        limits: The fields of the `Limits` that the worker puts on every test.
        packages: Installed distributions that programs may import.

    Raises:
        ConfigError: bubblewrap or one of the packages is not installed.
    """
    mounts = _package_mounts(packages)
    settings = {"limits": limits, "is_isolated": backend == "bubblewrap", "packages": None}
    if backend == "guard":
        settings["packages"] = str(next(iter(mounts)).parent) if mounts else None
        return Launch(_interpreter(_HERE.parents[1], settings), _ENVIRONMENT)
    program = shutil.which("bwrap")
    if program is None:
        raise ConfigError(
            "task.sandbox.backend=bubblewrap: the program bwrap is not installed. Install it with "
            "`apt-get install bubblewrap` (or your system's package manager); "
            "task.sandbox.backend=guard runs programs of the model without isolation"
        )
    if Path("/tmp") in Path(sys.base_prefix).resolve().parents:
        raise ConfigError(
            f"task.sandbox.backend=bubblewrap: the interpreter {sys.base_prefix} lies in /tmp, "
            f"which every test sees empty; use a Python that is installed elsewhere"
        )
    if mounts:
        settings["packages"] = str(_PACKAGE_FOLDER)
    isolation = [*_namespaces(), *_file_system(mounts)]
    inside = _interpreter(_CODE_FOLDER, settings)
    return Launch([program, *isolation, "--", *inside], _ENVIRONMENT)


def _interpreter(root: Path, settings: dict[str, object]) -> list[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); "
        "from vpo_lightning.sandbox.inside.server import main; "
        f"del sys.path[0]; main({json.dumps(settings)!r})"
    )
    return [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c", code]


def _namespaces() -> list[str]:
    """Root becomes nobody inside and makes its user namespace there (see `Isolation.enter`)."""
    common = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    common += [
        "--unshare-cgroup-try",
        "--hostname",
        "sandbox",
        "--die-with-parent",
        "--new-session",
    ]
    if os.geteuid() != 0:
        return [*common, "--unshare-user"]
    return [*common, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def _file_system(packages: dict[Path, Path]) -> list[str]:
    """A root that holds the interpreter, read-only; it becomes read-only itself at the end."""
    prefix = Path(sys.base_prefix).resolve()
    folders = [Path(name) for name in _SYSTEM_FOLDERS]
    folders += [prefix / name for name in ("lib", "lib64")]
    links = [folder for folder in dict.fromkeys(folders) if folder.is_symlink()]
    files = [Path(os.path.realpath(sys.executable)), Path("/etc/ld.so.cache")]
    shown = {path: path for path in [*folders, *files] if path.exists() and path not in links}
    shown[_HERE / "inside"] = _CODE_FOLDER / "vpo_lightning" / "sandbox" / "inside"
    shown.update(packages)
    parents = {parent for target in shown.values() for parent in target.parents}
    parents |= {Path("/tmp"), Path("/dev")}
    arguments: list[str] = []
    for folder in sorted(parents - {Path("/")} - set(links)):  # else only root may look into them
        arguments += ["--dir", str(folder)]
    for link in links:
        arguments += ["--symlink", os.readlink(link), str(link)]
    for source, target in shown.items():
        arguments += ["--ro-bind", str(source), str(target)]
    for folder in _site_folders(prefix):
        arguments += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    for device in _DEVICES:
        arguments += ["--dev-bind", device, device]
    return [*arguments, "--proc", "/proc", "--chdir", "/tmp", "--remount-ro", "/"]


def _site_folders(prefix: Path) -> list[Path]:
    """Folders of installed packages below what is shown; they are hidden, data and all."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found: list[Path] = []
    for base in {prefix, Path("/usr")}:
        for lib in ("lib", "lib64"):
            for name in (version, f"python{sys.version_info.major}"):
                for site in ("site-packages", "dist-packages"):
                    folder = base / lib / name / site
                    if folder.is_dir() and not (base / lib).is_symlink():
                        found.append(folder)
    return found


def _package_mounts(packages: Sequence[str]) -> dict[Path, Path]:
    """Where the top-level files and folders of distributions lie, and where they are shown."""
    mounts: dict[Path, Path] = {}
    for name in packages:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError as error:
            raise ConfigError(
                f"task.sandbox.packages: {name!r} is not installed; install it or leave it out"
            ) from error
        for file in files:
            top = file.parts[0]
            if top != ".." and not top.endswith((".dist-info", "__pycache__")):
                source = Path(str(distribution(name).locate_file(top)))
                mounts[source] = _PACKAGE_FOLDER / top
    return mounts
