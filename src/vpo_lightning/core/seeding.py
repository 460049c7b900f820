"""Random numbers derived from names: equal seeds give equal numbers in any batch, order, process.

Every draw of the project comes from ``(run seed, purpose, step, prompt id)`` through
``derive_seed``; nothing reads a global generator. Numbers for many prompt groups are drawn in one
vectorised call (``counter_uniform``) that gives each group exactly what it would get alone.
"""

from hashlib import blake2b

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

# The Weyl increment and the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable
# pseudorandom number generators", OOPSLA 2014; Stafford's variant 13), and the 64-bit finaliser of
# MurmurHash3: right shifts and multipliers, these written as the signed integers that torch stores.
_WEYL = 0x9E3779B97F4A7C15 - 2**64
_SPLITMIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))
_MURMUR = ((33, 0xFF51AFD7ED558CCD - 2**64), (33, 0xC4CEB9FE1A85EC53 - 2**64), (33, 1))
# Integers hashed at a time: they stay inside a core's cache.
_BLOCK = 1 << 15


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on every part, its type and its position.

    The parts are hashed with BLAKE2b, so the value is the same on every machine and Python
    version (unlike ``hash``), and seeds of neighbouring steps are unrelated.

    Args:
        parts: Integers and strings, e.g. ``derive_seed(run_seed, "weights", step, prompt_id)``.

    Raises:
        TypeError: A part is neither an integer nor a string.
        ValueError: No part is given.
    """
    if not parts:
        raise ValueError("derive_seed needs at least one part, e.g. derive_seed(run_seed, step)")
    digest = blake2b(digest_size=8)
    for part in parts:
        if not isinstance(part, int | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"derive_seed takes integers and strings, got {part!r} ({type(part).__name__})"
            )
        text = part if isinstance(part, str) else str(int(part))
        data = text.encode("utf-8", "surrogatepass")
        # Type and length in front: ("ab", "c"), ("a", "bc"), (1,) and ("1",) are all different.
        digest.update(f"{'s' if isinstance(part, str) else 'i'}{len(data)}:".encode())
        digest.update(data)
    return int.from_bytes(digest.digest(), "big") >> 1


def torch_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new torch generator on ``device`` started at ``seed``."""
    return torch.Generator(device=device).manual_seed(seed)


def counter_uniform(
    seeds: Int64[Tensor, "*groups"], count: int, start: int = 0
) -> Float64[Tensor, "*groups {count}"]:
    """Return the numbers ``start .. start + count - 1`` of each seed's stream, uniform in (0, 1).

    A stream is SplitMix64 started at the MurmurHash3 finaliser of its seed, each output giving two
    numbers, low half first. A number depends on (seed, position) alone: a batch of groups equals
    each group drawn alone, bit for bit, on any device. Values are ``(j + 1/2) / 2**32`` for 32
    random bits j: never 0 or 1, so that logarithms and quantiles of them are finite.

    Args:
        seeds: One seed per group, any number of leading axes (none for a single group).
        count: Numbers per group.
        start: Position of the first number in the stream.

    Raises:
        ValueError: ``count`` or ``start`` is negative.
    """
    if count < 0 or start < 0:
        raise ValueError(f"count and start must not be negative, got {count} and {start}")
    origin = seeds.reshape(-1, 1).clone()
    _finalise_(origin, torch.empty_like(origin), _MURMUR)
    first, last = start // 2 + 1, (start + count + 1) // 2 + 1
    positions = torch.arange(first, last, device=seeds.device) * _WEYL
    numbers = torch.empty(len(origin), count, dtype=torch.float64, device=seeds.device)
    rows = max(1, _BLOCK // max(1, len(positions)))
    scratch = positions.new_empty(2, min(rows, len(origin)), len(positions))
    for row in range(0, len(origin), rows):
        block = origin[row : row + rows]
        bits = torch.add(block, positions, out=scratch[0, : len(block)])
        _finalise_(bits, scratch[1, : len(block)], _SPLITMIX)
        halves = bits.view(torch.int32)[:, start % 2 : start % 2 + count]
        # From signed j - 2**31, exactly: (j + 1/2) / 2**32.
        numbers[row : row + rows].copy_(halves).mul_(2.0**-32).add_(0.5 + 2.0**-33)
    return numbers.reshape(*seeds.shape, count)


def _finalise_(values: Tensor, scratch: Tensor, mixer: tuple[tuple[int, int], ...]) -> None:
    """Mix the bits of 64-bit integers in place: xor with a right shift, multiply, and again."""
    for shift, multiplier in mixer:
        # torch's right shift copies the sign; the mask makes it a shift of unsigned numbers.
        torch.bitwise_right_shift(values, shift, out=scratch)
        values.bitwise_xor_(scratch.bitwise_and_((1 << (64 - shift)) - 1))
        if multiplier != 1:
            values.mul_(multiplier)
