"""What ``policy=`` means where a policy is used: a run, a model folder, or an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build
from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.loading import CHAT_TEMPLATE_KWARGS, PretrainedModel
from vpo_lightning.policy.model_folder import check_model_folder
from vpo_lightning.prompting import MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.run_folder import read_config

if TYPE_CHECKING:
    from vpo_lightning.rollout.engine import RolloutEngine


@dataclass(frozen=True)
class Deployed:
    """A trained policy, and the run it comes from.

    Attributes:
        place: Model folder, Hub id, or URL.
        label: Name for tables: the run's name, else the last part of `place`.
        is_endpoint: Whether `place` is the URL of an OpenAI-compatible endpoint.
        run: Folder of the run, None for another policy.
        cfg: The run's config, None for another policy.
    """

    place: str
    label: str
    is_endpoint: bool = False
    run: Path | None = None
    cfg: DictConfig | None = None

    def from_run(self, key: str, otherwise: Any) -> Any:
        """A value of the run's config, or `otherwise` where there is none."""
        found = None if self.cfg is None else OmegaConf.select(self.cfg, key)
        if isinstance(found, DictConfig):
            return OmegaConf.to_container(found, resolve=True)
        return otherwise if found is None else found


def find_policy(policy: str) -> Deployed:
    """The policy that a config names, without loading it.

    Raises:
        ConfigError: Neither a run with a policy, nor a model folder, nor a Hub id, nor a URL.
    """
    policy = str(policy)
    if policy.startswith(("http://", "https://")):
        return Deployed(policy.rstrip("/"), policy.split("//")[1].rstrip("/"), is_endpoint=True)
    folder = Path(policy).expanduser()
    if (folder / "config.yaml").is_file():
        if not (folder / "policy" / "config.json").is_file():
            raise ConfigError(
                f"policy={policy}: the run has no policy/ yet; finish it by vpo-train "
                f"run={policy} resume=true"
            )
        check_model_folder(folder / "policy", f"policy={policy}/policy")
        cfg = read_config(folder, f"policy={policy}")
        label = f"{cfg.get('name') or folder.name}"
        return Deployed(str(folder / "policy"), label, run=folder, cfg=cfg)
    try:
        check_model(policy)
    except ConfigError as error:
        raise ConfigError(f"{error}, a run folder, or http://host:port/v1") from error
    return Deployed(policy, folder.name)


def check_model(policy: str) -> None:
    """Refuses a policy that is neither a model folder nor a Hub id.

    Raises:
        ConfigError: It is not there.
    """
    try:
        PretrainedModel(policy).check()
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.path", "policy")) from error


def prompt_style(deployed: Deployed, answers: int | None) -> PromptStyle:
    """How the policy is asked: as in its run, or for chains of so many answers.

    Args:
        deployed: The policy.
        answers: m; 1 asks for single answers; None: as trained, or one answer for a policy without
            a run.

    Raises:
        ConfigError: m is no number, or below 1.
    """
    if answers is None and deployed.cfg is not None:
        return build.build_prompt(deployed.cfg)
    if answers is not None and not isinstance(answers, int):
        raise ConfigError(f"m={answers}: expected a whole number of at least 1, or null")
    return SingleAnswer() if answers in (None, 1) else MultiAnswer(answers)  # type: ignore[arg-type]


def load_engine(deployed: Deployed, engine: DictConfig, dtype: str | None) -> RolloutEngine:
    """The rollout engine with the policy's weights, on a GPU where there is one.

    Args:
        deployed: A run or a model folder.
        engine: Config of the engine.
        dtype: Name of a torch dtype; None: the run's, else float32.
    """
    import torch

    model = {
        "dtype": dtype or deployed.from_run("model.dtype", "float32"),
        "trust_remote_code": deployed.from_run("model.trust_remote_code", False),
    }
    cfg = OmegaConf.create({"engine": engine, "model": model})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return build.build_engine(cfg, deployed.place, device)


@dataclass(frozen=True)
class Codec:
    """The tokenizer of a policy: chat messages and text to ids, ids to text."""

    tokenizer: Any
    chat_template_kwargs: dict[str, Any]
    system_prompt: str | None = None

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """The token ids of a prompt.

        Raises:
            ConfigError: No chat template, or words that a closed vocabulary does not have.
        """
        from vpo_lightning.policy.loading import encode_messages

        return encode_messages(
            self.tokenizer, messages, self.chat_template_kwargs, self.system_prompt
        )

    def encode_text(self, text: str) -> tuple[int, ...]:
        """The token ids of a text, without special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def load_codec(deployed: Deployed) -> Codec:
    """The tokenizer of a run or a model folder."""
    from vpo_lightning.policy.loading import load_tokenizer

    trusted = deployed.from_run("model.trust_remote_code", False)
    system = deployed.from_run("system_prompt", None)
    tokenizer = load_tokenizer(deployed.place, trust_remote_code=trusted)
    return Codec(tokenizer, template_kwargs(deployed), system)


def template_kwargs(deployed: Deployed) -> dict[str, Any]:
    """The variables of the chat template: those of training; for another model, no thinking."""
    if deployed.cfg is None:
        return dict(CHAT_TEMPLATE_KWARGS)
    return build.chat_settings(deployed.cfg).get("chat_template_kwargs", {})
