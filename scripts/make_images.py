"""Draws the picture of the README.

Usage: python scripts/make_images.py <vpo run> <grpo run> [output.svg]

Both runs are jobs of `vpo-train -m sweep=maze_comparison`: same task, same held-out mazes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from vpo_lightning.build import build_task
from vpo_lightning.evaluation.pool import PromptPool, read_pools
from vpo_lightning.tasks.maze.picture import picture

GAP = 24
TITLE = 28


def both_sides(rewards: list[list[float]]) -> bool:
    """Whether one answer takes half of the gold and another half of the diamonds."""
    return any(r[1] >= 0.5 for r in rewards) and any(r[2] >= 0.5 for r in rewards)


def first_answers(pool: PromptPool, count: int = 3) -> tuple[list[str], list[list[float]]]:
    """The first answers of a pool, in the order they were sampled."""
    texts = [text or "" for chain in pool.texts for text in chain][:count]
    return texts, [reward for chain in pool.rewards for reward in chain][:count]


def is_typical(mine: PromptPool, other: PromptPool) -> bool:
    """Most of VPO's chains hold both sides, few of GRPO's sets do; all of its routes arrive."""
    rewards, others = first_answers(mine)[1], first_answers(other)[1]
    return both_sides(rewards) and not both_sides(others) and all(r[0] for r in others)


def main() -> None:
    """Writes the two mazes side by side."""
    vpo, grpo = Path(sys.argv[1]), Path(sys.argv[2])
    output = Path(sys.argv[3] if len(sys.argv) > 3 else "docs/images/maze_routes.svg")
    cfg = OmegaConf.load(vpo / "config.yaml")
    assert isinstance(cfg, DictConfig)
    rows = {row.id: row for row in build_task(cfg).rows("test")}
    others = {pool.prompt_id: pool for pool in read_pools(grpo / "pools" / "grpo_T0.7.parquet")}
    pools = read_pools(vpo / "pools" / "vpo_T0.7.parquet")
    chosen = next(pool for pool in pools if is_typical(pool, others[pool.prompt_id]))
    row = rows[chosen.prompt_id]
    panels = [
        ("GRPO: three samples", first_answers(others[row.id])[0]),
        ("VPO: one chain of three", first_answers(chosen)[0]),
    ]
    drawn = [(title, picture(row, answers)) for title, answers in panels]
    output.write_text(side_by_side(drawn), encoding="utf-8")
    print(output, row.id)


def side_by_side(panels: list[tuple[str, str]]) -> str:
    """One SVG of several, each under its title."""
    parts, x, height = [], 0.0, 0.0
    for i, (title, svg) in enumerate(panels):
        box = re.search(r'viewBox="([^"]+)"', svg)
        assert box is not None
        _, _, width, tall = map(float, box.group(1).split())
        inner = re.sub(r'\bid="([^"]+)"', rf'id="p{i}-\1"', svg)
        inner = re.sub(r"url\(#([^)]+)\)", rf"url(#p{i}-\1)", inner)
        inner = re.sub(r'aria-labelledby="[^"]*"', "", inner)
        inner = re.sub(r'(<svg[^>]*?) width="\d+" height="\d+"', r"\1", inner, count=1)
        place = f'<svg x="{x}" y="{TITLE}" width="{width}" height="{tall}"'
        inner = inner.replace("<svg", place, 1)
        parts.append(
            f'<text x="{x + width / 2}" y="{TITLE - 9}" text-anchor="middle" font-size="15" '
            f'font-family="sans-serif" fill="#777">{title}</text>{inner}'
        )
        x += width + GAP
        height = max(height, tall + TITLE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {x - GAP} {height}" '
        f'width="{x - GAP}" height="{height}">{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    main()
