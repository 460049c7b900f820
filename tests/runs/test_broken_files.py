"""Files of a run that are broken, cut short or of another kind are named in one line."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch

from vpo_lightning import entry
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.pool import PromptPool, read_pools, read_sampling, write_pools
from vpo_lightning.policy.model_folder import check_model_folder
from vpo_lightning.policy.weights import read_checkpoint
from vpo_lightning.rescore import main as rescore
from vpo_lightning.resume import main as resume
from vpo_lightning.rollout.store import read_rollouts
from vpo_lightning.rollout.stored import read_stored
from vpo_lightning.run_folder import read_config, read_status
from vpo_lightning.searching.curves import read_result
from vpo_lightning.serve import serve

GARBAGE = bytes(range(255, 0, -1)) * 8
POOL = PromptPool("p", ["a"], [1.0], [[[1.0]]], [["x"]], [1], [False])


@pytest.mark.parametrize("content", [GARBAGE, b"- a", b"", b"task: {a: [1\nmodel: x"])
def test_a_config_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^run=x: .*config\.yaml") as refused:
        read_config(tmp_path, "run=x")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [GARBAGE, b"- a", b"", b"task: {a: [1\nmodel: x", b"seed: 0"])
def test_no_command_prints_a_traceback_for_a_broken_config(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_000000_rank_0.parquet").write_bytes(GARBAGE)
    commands = (
        lambda: resume([f"run={tmp_path}", "resume=true"]),
        lambda: serve([str(tmp_path), "--engine", "hf"]),
        lambda: rescore([str(tmp_path)]),
    )
    for command in commands:
        assert command() == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("content", [GARBAGE, b"[1]", b"", b"{}", b'"word"'])
def test_a_summary_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "summary.json"
    assert read_status(path) == ""
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"summary\.json"):
        read_status(path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", GARBAGE])
def test_a_result_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"result\.json"):
        read_result(tmp_path)


def test_a_parquet_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x_T1.0.parquet"
    write_pools([POOL], path)
    whole = path.read_bytes()
    for content in (b"", GARBAGE, whole[:200], whole[: len(whole) // 2]):
        path.write_bytes(content)
        for read in (read_pools, read_sampling, read_stored, lambda p: list(read_rollouts(p))):
            with pytest.raises(ConfigError, match=r"x_T1\.0\.parquet"):
                read(path)


def model_folder(folder: Path) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(8)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_a_model_folder_with_a_broken_file_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    whole = model_folder(tmp_path / "model")
    check_model_folder(whole, "policy=model")
    weights = (whole / "model.safetensors").read_bytes()
    for name, content in (
        ("config.json", b"[1]"),
        ("config.json", GARBAGE),
        ("tokenizer.json", GARBAGE),
        ("tokenizer.json", b""),
        ("model.safetensors", GARBAGE),
        ("model.safetensors", b""),
        ("model.safetensors", weights[:-1]),
    ):
        before = (whole / name).read_bytes()
        (whole / name).write_bytes(content)
        with pytest.raises(ConfigError, match=rf"^policy=model: its {name} .*set policy to"):
            check_model_folder(whole, "policy=model")
        (whole / name).write_bytes(before)


def test_a_checkpoint_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"vpo_step": 3}, path)
    whole = path.read_bytes()
    assert read_checkpoint(path) == {"vpo_step": 3}
    for content in (b"", GARBAGE, whole[:100], whole[:-40]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"last\.ckpt"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOTDIR, "Not a directory", "f/pools"),
            "output=f: f/pools: Not a directory",
        ),
        (OSError(errno.EACCES, "Permission denied", "f"), "output=f: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device: free some"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named_with_its_argument(
    error: OSError, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise error

    assert entry.reported(command, ["output=f", "seed=1"]) == 2
    assert line in capsys.readouterr().err


def test_an_error_of_the_network_keeps_its_traceback() -> None:
    def command() -> int:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        entry.reported(command, [])
