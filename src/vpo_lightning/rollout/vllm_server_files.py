"""New weights on their way to the servers, as safetensors files in shared memory.

The files stay until the next version, so that a server that returns can be given the current
weights while the policy is in the middle of a step.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vpo_lightning.errors import ConfigError

_PREFIX = "vpo-weights-"
_YOUNG_SECONDS = 60  # a folder is not locked in the moment in which it is made


@dataclass
class WeightFile:
    """A part of a model's weights.

    Attributes:
        path: A safetensors file.
        names: The tensors in it, in the order of the state dict.
        dtypes: Of each, by torch's name.
        shapes: Of each.
    """

    path: Path
    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)


class WeightFolder:
    """A folder of this process that holds one version of the weights.

    Args:
        parent: Where the folder is made; folders of processes that are gone are removed there.
        file_bytes: A file is finished when it holds this much.

    Raises:
        ConfigError: No such folder, or no right to write in it.
    """

    def __init__(self, parent: str | Path, file_bytes: int = 2**30) -> None:
        place = Path(parent).expanduser()
        try:
            remove_abandoned(place)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        except OSError as error:
            raise ConfigError(
                f"engine.weights_dir={parent}: {error.strerror or error}; expected a folder that "
                "this host and the servers share, with room for the model"
            ) from error
        self._file_bytes = file_bytes
        self._lock = FileLock(self.path / "lock")
        self._lock.acquire()

    def write(self, weights: Iterable[tuple[str, Tensor]]) -> list[WeightFile]:
        """Replaces the files by those of new weights, and returns them.

        Every weight is taken even if writing fails, because gathering a shard needs all processes.

        Raises:
            ConfigError: The folder is full.
        """
        self.clear()
        files: list[WeightFile] = []
        part: dict[str, Tensor] = {}
        problem: OSError | SafetensorError | None = None
        size = 0
        for name, tensor in weights:
            if problem is not None:
                continue
            # Tied weights share memory, which a file of tensors cannot.
            part[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            size += part[name].nbytes
            if size >= self._file_bytes:
                problem = self._save(part, files)
                part, size = {}, 0
        if part and problem is None:
            problem = self._save(part, files)
        if problem is not None:
            raise ConfigError(
                f"engine.weights_dir={self.path.parent}: {problem}; expected room for one copy of "
                "the model; name another folder, or make room"
            ) from problem
        return files

    def clear(self) -> None:
        """Deletes the files."""
        for path in self.path.glob("*.safetensors"):
            path.unlink()

    def close(self) -> None:
        """Deletes the folder."""
        self._lock.release()
        shutil.rmtree(self.path, ignore_errors=True)

    def _save(
        self, part: dict[str, Tensor], files: list[WeightFile]
    ) -> OSError | SafetensorError | None:
        file = WeightFile(self.path / f"{len(files):04d}.safetensors")
        for name, tensor in part.items():
            file.names.append(name)
            file.dtypes.append(str(tensor.dtype).removeprefix("torch."))
            file.shapes.append(list(tensor.shape))
        try:
            save_file(part, file.path)
        except (OSError, SafetensorError) as error:
            return error
        files.append(file)
        return None


def remove_abandoned(parent: Path) -> None:
    """Deletes weight folders whose processes were killed: shared memory outlives them."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
                continue
            lock = FileLock(folder / "lock")
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
