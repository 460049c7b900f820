"""A config error as one line: the key that is wrong, and what it could have been."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import resources
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from vpo_lightning.errors import ConfigError

_PLACES = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EFBIG),
}
"""What the system says about a file or folder that the user chose wrongly."""


def is_config_error(error: BaseException) -> bool:
    """Whether a user can mend the error by changing a config key, an input file or a folder.

    An exception inside a component's constructor is one only if it is a ConfigError, or if the
    component could not be found or does not know one of its arguments.
    """
    if isinstance(error, InstantiationException):
        cause = error.__cause__
        return cause is None or isinstance(cause, ConfigError | TypeError | ImportError)
    if isinstance(error, ConfigError | HydraException | OmegaConfBaseException):
        return True
    return isinstance(error, OSError) and error.errno in _PLACES


def explain_config_error(
    error: BaseException, config_name: str | None = None, arguments: Sequence[str] = ()
) -> str:
    """One line that names the key and, where they are known, its options.

    Args:
        error: What composing or reading the config raised.
        config_name: The primary config, to list the keys beside one that does not exist.
        arguments: The command line.
    """
    if isinstance(error, InstantiationException):
        return _instantiation(error)
    if isinstance(error, MissingConfigException):
        return _missing_config(error)
    if isinstance(error, OverrideParseException):
        reason = "; ".join(line for line in _lines(error) if not line.startswith("See "))
        given = error.override or " ".join(arguments)
        return (
            f"cannot read {given!r} ({reason}): expected key=value; put a value with special "
            f"characters in quotes: 'key=\"a (b)\"'"
        )
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        return (
            f"{error.full_key}: the config has no such key; if it is a run's, its config.yaml is "
            "incomplete or of another version"
        )
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key or 'config'}: {_lines(error)[0]}"
    if isinstance(error, OSError):
        return _place(error, arguments)
    unknown = re.match(r"Could not override '([^']*)'", str(error))
    if unknown and config_name is not None:
        return _unknown_key(unknown.group(1), config_name, arguments)
    choice = re.match(r"You must specify '([^']*)'", str(error))
    if choice:
        return f"{choice.group(1)}: choose one of {', '.join(_lines(error)[2:])}"
    sweep = re.match(r"Ambiguous value for argument '(.*)'", str(error))
    if sweep:
        return f"{sweep.group(1)}: several values need --multirun (-m); a list is key=[a,b]"
    known = re.match(r"Could not append to config. An item is already at '([^']*)'", str(error))
    if known:
        return (
            f"+{known.group(1)}: the key exists already; write {known.group(1)}=... without the +"
        )
    return "; ".join(_lines(error))


def refuse_other_types(cfg: DictConfig) -> None:
    """Refuses overrides with a word or a list where the config has a number, and the like.

    Called while Hydra runs. A number may stand for a list and a list for a number; everything may
    be null, and what is null may be anything, but a setting of its own (no group) is one value.

    Raises:
        ConfigError: Names the key, what was given, and what the config has.
    """
    hydra = HydraConfig.get()
    parsed = OverridesParser.create().parse_overrides(list(hydra.overrides.task))
    groups = set(hydra.runtime.choices)
    given = {o.key_or_group: o for o in parsed if o.key_or_group not in groups}
    suspects = {
        key: override
        for key, override in given.items()
        if not override.is_delete() and OmegaConf.select(cfg, key) is not None
    }
    if not suspects:
        return
    others = [o.input_line or "" for o in parsed if o.key_or_group not in suspects]
    loader = GlobalHydra.instance().config_loader()
    own = loader.load_configuration(hydra.job.config_name, others, RunMode.RUN)
    for key in suspects:
        value = OmegaConf.select(cfg, key)
        expected = _other_type(value, OmegaConf.select(own, key))
        if key in own and own[key] is None and OmegaConf.is_config(value):
            expected = "one value"
        if expected:
            raise ConfigError(f"{key}={value}: expected {expected}")


def _other_type(value: Any, default: Any) -> str:
    """What the config has at a key that `value` cannot stand for; "" if it can."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        is_other = isinstance(value, str | bool) or OmegaConf.is_dict(value)
        return f"a number, such as {default}" if is_other and value != "auto" else ""
    if isinstance(default, DictConfig):
        keys = ", ".join(map(str, default))
        return "" if OmegaConf.is_dict(value) else f"a mapping with the keys {keys}"
    return ""


def group_options(group: str) -> list[str]:
    """The choices of a config group while Hydra runs, those of ``--config-dir`` included."""
    return sorted(GlobalHydra.instance().config_loader().get_group_options(group))


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]


def _instantiation(error: InstantiationException) -> str:
    if isinstance(error.__cause__, ConfigError):
        return str(error.__cause__)
    key = re.search(r"full_key: (\S+)", str(error))
    text = "; ".join(line for line in _lines(error) if not line.startswith("full_key:"))
    return f"{key.group(1)}: {text}" if key else text


def _place(error: OSError, arguments: Sequence[str]) -> str:
    """What is wrong with a file or folder, and the argument that names it."""
    reason = error.strerror or _lines(error)[0]
    if error.filename is None:
        return f"{reason}: free some space, or choose another folder"
    file = str(error.filename)
    given = {a: a.partition("=")[2] if "=" in a else a for a in arguments}
    named = [a for a, place in given.items() if place and place in file]
    subject = max(named, key=lambda a: len(given[a]), default="")
    if subject and given[subject] != file:
        return f"{subject}: {file}: {reason}; choose another place"
    return f"{subject or file}: {reason}; choose another place"


def _missing_config(error: MissingConfigException) -> str:
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        files = resources.files("vpo_lightning.conf").iterdir()
        options = sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))
        return f"--config-name {choice}: no such config; options: {', '.join(options)}"
    options = error.options or []
    return f"{group}={choice}: no such choice{_suggestion(choice, options)}; options: " + (
        ", ".join(options) or "none"
    )


def _suggestion(word: str, options: Sequence[str]) -> str:
    close = get_close_matches(word, options, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _unknown_key(key: str, config_name: str, arguments: Sequence[str]) -> str:
    parent, _, name = key.rpartition(".")
    given = next((a for a in arguments if a.startswith(f"{key}=")), key)
    cfg = _composed(config_name, [a for a in arguments if a != given])
    node = OmegaConf.select(cfg, parent) if parent and cfg is not None else cfg
    if not isinstance(node, DictConfig):
        return f"{given}: there is no key {key}"
    options = {str(option) for option in node}
    if name in options:  # a mapping whose own keys are others
        return f"{given}: to add to the keys of {key}, write +{given}"
    if not parent and cfg is not None:
        options |= {group for group in cfg.hydra.runtime.choices if not group.startswith("hydra")}
        options -= {"hydra"}
    place = f" of {parent}" if parent else ""
    return (
        f"{given}: there is no key {key}{_suggestion(name, sorted(options))}; "
        f"keys{place}: {', '.join(sorted(options))}"
    )


def _composed(config_name: str, arguments: Sequence[str]) -> DictConfig | None:
    """The config with as much of the command line as can be composed, without an error."""
    assignments = [a for a in arguments if "=" in a and not a.startswith("-")]
    folders = list(_config_folders(arguments))
    if folders:
        assignments.append(f"hydra.searchpath=[{','.join(f'file://{f}' for f in folders)}]")
    for overrides in (assignments, []):
        GlobalHydra.instance().clear()
        try:
            with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
                return compose(config_name, overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            continue  # another override is wrong as well: list the keys of the defaults
    return None


def _config_folders(arguments: Sequence[str]) -> Iterator[str]:
    for flag, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if flag in ("--config-dir", "-cd"):
            yield following
        elif flag.startswith("--config-dir="):
            yield flag.partition("=")[2]
