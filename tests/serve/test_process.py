"""The command vpo-serve: start, graceful stop, vLLM, wrong input, and a short soak."""

from __future__ import annotations

import argparse
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scripts.soak_serve import ask, soak, start_server
from vpo_lightning.deployed import Deployed, load_codec
from vpo_lightning.errors import ConfigError
from vpo_lightning.serve import serve, vllm_command


@pytest.mark.slow
def test_requests_in_flight_are_answered_before_it_stops(text_folder: Path) -> None:
    process, port = start_server(str(text_folder))
    body = b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 400, "n": 8}'
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, port, body)
        while ask(port, b"{}")[0] != 400:
            pass
        process.send_signal(signal.SIGTERM)
        assert answer.result()[0] == 200
    assert process.wait(60) == 0


@pytest.mark.slow
def test_parallel_requests_with_malformed_ones_among_them(text_folder: Path) -> None:
    figures = soak(str(text_folder), "hello", seconds=10, clients=16)
    assert figures["faults"] == []
    assert figures["exit_status"] == 0
    assert figures["statuses"]["200"] > 10
    assert figures["statuses"]["400"] > 10
    before, after = figures["memory_mb"]
    assert after < before + 20


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nowhere/at/all"], "nowhere/at/all"),
        (["./nowhere"], "no such folder"),
        (["http://localhost:1/v1"], "endpoint"),
        (["{folder}", "--max-n", "0"], "--max-n"),
        (["{folder}", "--api-key-variable", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["{folder}", "--engine", "vllm"], "vllm"),
    ],
    ids=str,
)
def test_wrong_input_is_one_line(
    text_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    word: str,
) -> None:
    monkeypatch.setenv("PATH", "")  # where there is a vllm
    assert serve([argument.format(folder=text_folder) for argument in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert word in error
    assert "\n" not in error


def test_vllm_serves_the_exported_policy_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    options = argparse.Namespace(host="127.0.0.1", port=8001, name=None, dtype=None)
    command = vllm_command(Deployed("run/policy", "vpo"), options, "secret")
    place = ["--host", "127.0.0.1", "--port", "8001", "--served-model-name", "vpo"]
    thinking = ["--default-chat-template-kwargs", '{"enable_thinking": false}']
    assert command == [str(program), "serve", "run/policy", *place, *thinking]
    assert os.environ["VLLM_API_KEY"] == "secret"  # not on a command line that all can read
    options.dtype = "bfloat16"
    trusted = OmegaConf.create({"model": {"trust_remote_code": True}})
    command = vllm_command(Deployed("run/policy", "vpo", cfg=trusted), options, None)
    assert command[-3:] == ["--dtype", "bfloat16", "--trust-remote-code"]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="--engine hf"):
        vllm_command(Deployed("run/policy", "vpo"), options, None)


def test_vllm_writes_prompts_as_training_did(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    system = 'Sois bref, « s\'il te plaît » \\ {{ 😀 }}\nand "sharp".'
    model = {"path": "x", "chat_template_kwargs": {"enable_thinking": True}}
    cfg = OmegaConf.create({"model": model, "system_prompt": system})
    deployed = Deployed(str(text_folder), "vpo", cfg=cfg)
    options = argparse.Namespace(host="127.0.0.1", port=8001, name=None, dtype=None)
    command = vllm_command(deployed, options, None)
    flags = dict(zip(command[-4::2], command[-3::2], strict=True))
    assert json.loads(flags["--default-chat-template-kwargs"]) == {"enable_thinking": True}
    codec = load_codec(deployed)
    user, own = {"role": "user", "content": "hello"}, {"role": "system", "content": "Own."}
    for messages in ([user], [own, user]):
        text = codec.tokenizer.apply_chat_template(
            messages,
            chat_template=flags["--chat-template"],
            tokenize=False,
            add_generation_prompt=True,
        )
        assert codec.tokenizer(text)["input_ids"] == codec.encode(messages)
