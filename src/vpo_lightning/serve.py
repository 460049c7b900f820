"""vpo-serve: an OpenAI-compatible endpoint on a policy, by this package or by vLLM."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

from vpo_lightning.deployed import (
    Deployed,
    find_policy,
    load_codec,
    load_engine,
    template_kwargs,
)
from vpo_lightning.entry import reported
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import AnswerFormat, NumberedTags

_STOP_SECONDS = 30


def main() -> None:
    """Entry point."""
    sys.exit(serve(sys.argv[1:]))


def serve(arguments: Sequence[str]) -> int:
    """Serves until SIGINT or SIGTERM; the exit status."""
    options = _parser().parse_args(arguments)
    return reported(lambda: _started(options), arguments)


def _started(options: argparse.Namespace) -> int:
    deployed = find_policy(options.policy)
    if deployed.is_endpoint:
        raise ConfigError(f"policy={options.policy}: it is an endpoint already")
    key = _api_key(options.api_key_variable)
    if options.engine == "auto":
        options.engine = "hf" if shutil.which("vllm") is None else "vllm"
    if options.engine == "vllm":
        print(
            "vLLM's own server: no chains (the field `answers`), no --max-..., its own limits",
            flush=True,
        )
        command = vllm_command(deployed, options, key)
        os.execvp(command[0], command)
    return _serve(deployed, options, key)


def vllm_command(deployed: Deployed, options: argparse.Namespace, key: str | None) -> list[str]:
    """The command of vLLM's own server on the same policy; the API key travels by environment.

    Raises:
        ConfigError: There is no vLLM.
    """
    program = shutil.which("vllm")
    if program is None:
        raise ConfigError(
            "--engine vllm: there is no command vllm; pip install 'vpo-lightning[vllm]', or "
            "--engine hf"
        )
    if key is not None:
        os.environ["VLLM_API_KEY"] = key
    name = options.name or deployed.label
    place = ["--host", options.host, "--port", str(options.port)]
    model = ["--served-model-name", name, *_vllm_prompting(deployed)]
    if options.dtype is not None:
        model += ["--dtype", options.dtype]
    if deployed.from_run("model.trust_remote_code", False):
        model.append("--trust-remote-code")
    return [program, "serve", deployed.place, *place, *model]


def _vllm_prompting(deployed: Deployed) -> list[str]:
    """What makes vLLM write prompts as training did: template variables, system prompt."""
    variables = template_kwargs(deployed)
    flags = ["--default-chat-template-kwargs", json.dumps(variables)] if variables else []
    system = deployed.from_run("system_prompt", None)
    if system is None:
        return flags
    template = load_codec(deployed).tokenizer.chat_template
    return [*flags, "--chat-template", template_with_system(template, system)]


def template_with_system(template: str, system: str) -> str:
    """A chat template that puts a system message before messages without one."""
    first = f"[{{'role': 'system', 'content': {json.dumps(system, ensure_ascii=False)}}}]"
    return (
        "{%- if not messages | selectattr('role', 'equalto', 'system') | list -%}"
        f"{{%- set messages = {first} + messages -%}}"
        "{%- endif -%}"
        f"{template}"
    )


def _serve(deployed: Deployed, options: argparse.Namespace, key: str | None) -> int:
    try:
        import uvicorn

        from vpo_lightning.serving.app import create_app
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"vpo-serve needs the package {error.name}: pip install 'vpo-lightning[serve]'"
        ) from error
    service = load_service(deployed, options)
    app = create_app(service, key)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops gracefully and raises the signal again at the end, which is no failure.
        signal.signal(number, lambda number, frame: None)
    print(f"{service.model}: http://{options.host}:{options.port}/v1", flush=True)
    uvicorn.run(
        app,
        host=options.host,
        port=options.port,
        log_level="warning",
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    return 0


def load_service(deployed: Deployed, options: argparse.Namespace) -> Any:
    """The policy as a `ChatService`.

    Raises:
        ConfigError: A limit that is not positive, or a task that does not exist.
    """
    from omegaconf import OmegaConf
    from transformers import AutoConfig
    from transformers.utils import logging

    from vpo_lightning.serving.batcher import Batcher
    from vpo_lightning.serving.chat_request import Limits
    from vpo_lightning.serving.service import ChatService

    for name in ("max_n", "max_tokens", "max_waiting", "max_body_kb", "threads"):
        if getattr(options, name) < 1:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}={getattr(options, name)}: it must be at least 1")
    limits = Limits(
        body_bytes=options.max_body_kb << 10,
        completions=options.max_n,
        tokens=options.max_tokens,
        waiting=options.max_waiting,
    )
    logging.disable_progress_bar()
    import torch

    torch.set_num_threads(options.threads)
    codec = load_codec(deployed)
    hf = {"_target_": "vpo_lightning.rollout.hf_engine.HFEngine", "_partial_": True}
    engine = load_engine(deployed, OmegaConf.create(hf), options.dtype)
    trusted = deployed.from_run("model.trust_remote_code", False)
    config = AutoConfig.from_pretrained(deployed.place, trust_remote_code=trusted)
    default = deployed.from_run("rollout.sampling.max_tokens", 512)
    return ChatService(
        model=options.name or deployed.label,
        batcher=Batcher(engine, limits.waiting),
        encode=codec.encode,
        decode=codec.decode,
        answer_format=_answer_format(deployed),
        positions=config.max_position_embeddings,
        default_tokens=min(default, limits.tokens),
        limits=limits,
    )


def _answer_format(deployed: Deployed) -> AnswerFormat:
    """That of the run's task; numbered tags for a model without a run."""
    if deployed.cfg is None:
        return NumberedTags("answer", "your answer")
    from vpo_lightning import build

    return build.build_task(deployed.cfg).answer_format


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"--api-key-variable={variable}: it is not set")
    return key


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("vpo-serve", description=__doc__)
    parser.add_argument("policy", help="run folder, model folder, or Hub id")
    parser.add_argument(
        "--engine",
        choices=("auto", "hf", "vllm"),
        default="auto",
        help="vllm: `vllm serve`; hf: this package's own server; auto: vllm where it is installed",
    )
    parser.add_argument("--host", default="127.0.0.1", help="interface; loopback by default")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--name", help="of the model; default: the run's name or the folder's")
    parser.add_argument(
        "--api-key-variable", help="environment variable that holds the API key; default: no key"
    )
    parser.add_argument("--dtype", help="torch dtype; default: the run's, else float32")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--max-n", type=int, default=64, help="completions of a request")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens of a completion")
    parser.add_argument(
        "--max-waiting", type=int, default=64, help="waiting requests; more get status 429"
    )
    parser.add_argument("--max-body-kb", type=int, default=1024, help="length of a request body")
    return parser


if __name__ == "__main__":
    main()
