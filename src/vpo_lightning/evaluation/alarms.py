"""What may go wrong while a policy trains, found in the figures of its steps.

Figures are noisy, so means over a window of steps are compared: the last window with a limit, or
with the run's first window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from vpo_lightning.errors import ConfigError

Record = Mapping[str, float | int]
"""The figures of one training step, a line of ``metrics.jsonl``."""
NAMES = (
    "diversity_collapse",
    "dead_slot",
    "growing_truncation",
    "reward_hacking",
    "kl_runaway",
    "no_signal",
)


@dataclass(frozen=True)
class AlarmThresholds:
    """When an alarm is raised; it is over once its condition has not held for a whole window.

    Attributes:
        window: Steps of a mean.
        diversity_ratio: Diversity below this share of the first window's.
        slot_share: A slot of the chain wins less than this share of what equal slots would (1/m).
        truncated: Truncated share above this, ...
        truncated_rise: ... and above the first window's by this much.
        saturated: Mean reward of one objective above this, and above the first window's by `fall`,
            while ...
        fall: ... that of another one fell by this much.
        kl: KL to the reference policy in nats for each token.
        no_signal: Share of groups whose advantages are all 0.

    Raises:
        ConfigError: A value that is not positive.
    """

    window: int = 10
    diversity_ratio: float = 0.4
    slot_share: float = 0.15
    truncated: float = 0.1
    truncated_rise: float = 0.05
    saturated: float = 0.95
    fall: float = 0.1
    kl: float = 0.5
    no_signal: float = 0.75

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigError(f"alarms.{name}={value}: expected a positive number")
        if not isinstance(self.window, int):
            raise ConfigError(f"alarms.window={self.window}: expected a whole number of steps")


@dataclass(frozen=True)
class Alarm:
    """One time that an alarm was raised.

    Attributes:
        name: One of `NAMES`.
        first_step: The step at whose end it was raised.
        last_step: The last step at which its condition held.
        value: The figure at `first_step`.
        threshold: What it crossed.
        message: Both in words.
    """

    name: str
    first_step: int
    last_step: int
    value: float
    threshold: float
    message: str


class AlarmWatch:
    """Raises alarms as the figures of one step after the other come in.

    Args:
        objectives: Names of the task's objectives, for ``rollout/<objective>``.
        thresholds: When to raise.

    Attributes:
        alarms: All raised so far, in order.
    """

    def __init__(
        self, objectives: Sequence[str], thresholds: AlarmThresholds | None = None
    ) -> None:
        self.alarms: list[Alarm] = []
        self._objectives = objectives
        self._thresholds = thresholds or AlarmThresholds()
        self._first: list[Record] = []
        self._last: deque[Record] = deque(maxlen=self._thresholds.window)
        self._standing: dict[str, int] = {}  # place in `alarms` by name

    def add(self, record: Record) -> list[Alarm]:
        """Takes the figures of the next step; returns the alarms that it raised."""
        window, step = self._thresholds.window, int(record["step"])
        if len(self._first) < window:
            self._first.append(record)
        self._last.append(record)
        raised: list[Alarm] = []
        for alarm in self._conditions(step):
            place = self._standing.get(alarm.name)
            if place is None:
                self._standing[alarm.name] = len(self.alarms)
                self.alarms.append(alarm)
                raised.append(alarm)
            else:
                self.alarms[place] = replace(self.alarms[place], last_step=step)
        for name, place in list(self._standing.items()):
            if step - self.alarms[place].last_step >= window:
                del self._standing[name]
        return raised

    def standing(self) -> dict[str, bool]:
        """Whether each alarm stands, by name."""
        return {name: name in self._standing for name in NAMES}

    def _conditions(self, step: int) -> Iterable[Alarm]:
        """The alarms whose condition holds now, at most one of each name."""
        if len(self._last) < self._thresholds.window:
            return
        found = [*self._limits(), *self._changes()]
        for name, value, threshold, message in found:
            yield Alarm(name, step, step, value, threshold, message)

    def _limits(self) -> Iterable[tuple[str, float, float, str]]:
        limits, kl = self._thresholds, self._mean("train/kl")
        if kl is not None and kl > limits.kl:
            text = f"KL to the reference is {kl:.3g} nats a token, above {limits.kl:g}"
            yield "kl_runaway", kl, limits.kl, text
        flat = self._mean("rollout/no_signal_fraction")
        if flat is not None and flat > limits.no_signal:
            text = f"{flat:.0%} of the groups have no signal, above {limits.no_signal:.0%}"
            yield "no_signal", flat, limits.no_signal, text
        slots = [key for key in self._last[-1] if key.startswith("rollout/win_share/")]
        shares = {key: share for key in slots if (share := self._mean(key)) is not None}
        if shares:
            key = min(shares, key=lambda slot: shares[slot])
            least = limits.slot_share / len(slots)
            if shares[key] < least:
                number = int(key.rpartition("/")[2]) + 1
                text = f"answer {number} of {len(slots)} wins {shares[key]:.1%} of the weights"
                yield "dead_slot", shares[key], least, f"{text}, below {least:.1%}"

    def _changes(self) -> Iterable[tuple[str, float, float, str]]:
        limits = self._thresholds
        now, first = self._mean("rollout/diversity"), self._at_first("rollout/diversity")
        if now is not None and first and now < limits.diversity_ratio * first:
            least = limits.diversity_ratio * first
            text = f"diversity fell from {first:.3g} to {now:.3g}, below {least:.3g}"
            yield "diversity_collapse", now, least, text
        key = "rollout/truncated_fraction"
        now, first = self._mean(key), self._at_first(key)
        if now is not None and first is not None:
            most = max(limits.truncated, first + limits.truncated_rise)
            if now > most:
                text = f"{now:.0%} of the rollouts are truncated, above {most:.0%}"
                yield "growing_truncation", now, most, f"{text}; {first:.0%} at first"
        yield from self._hacking()

    def _hacking(self) -> Iterable[tuple[str, float, float, str]]:
        limits, changes = self._thresholds, {}
        for name in self._objectives:
            now, first = self._mean(f"rollout/{name}"), self._at_first(f"rollout/{name}")
            if now is not None and first is not None:
                changes[name] = (first, now)
        full = [
            name
            for name, (first, now) in changes.items()
            if now > limits.saturated and now - first > limits.fall
        ]
        falls = {name: first - now for name, (first, now) in changes.items()}
        worst = max(falls, key=lambda name: falls[name], default=None)
        if full and worst is not None and falls[worst] > limits.fall:
            first, now = changes[worst]
            text = f"{full[0]} rose to {changes[full[0]][1]:.2f} while {worst} fell"
            yield (
                "reward_hacking",
                falls[worst],
                limits.fall,
                f"{text} from {first:.2f} to {now:.2f}",
            )

    def _mean(self, key: str) -> float | None:
        values = [record[key] for record in self._last if key in record]
        return fmean(values) if values else None

    def _at_first(self, key: str) -> float | None:
        """The mean over the first window, once the last one does not overlap with it."""
        if int(self._last[0]["step"]) <= int(self._first[-1]["step"]):
            return None
        values = [record[key] for record in self._first if key in record]
        return fmean(values) if values else None


def find_alarms(
    records: Iterable[Record],
    objectives: Sequence[str],
    thresholds: AlarmThresholds | None = None,
) -> list[Alarm]:
    """The alarms of a run, from the records of its ``metrics.jsonl``."""
    watch = AlarmWatch(objectives, thresholds)
    for record in records:
        watch.add(record)
    return watch.alarms
