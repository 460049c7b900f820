"""vpo-report: one HTML page about one or several runs, written once or served while they train."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vpo_lightning.entry import reported
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.files import write_text
from vpo_lightning.evaluation.report.browser import Pictures
from vpo_lightning.evaluation.report.contents import report_page
from vpo_lightning.evaluation.report.folders import find_runs
from vpo_lightning.evaluation.report.server import serve
from vpo_lightning.report_pictures import NoPictures, TaskPictures

ROLLOUTS = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(arguments)
    return reported(lambda: _report(options), arguments)


def _report(options: argparse.Namespace) -> int:
    _check(options)
    if options.watch:
        return _watch(options)
    out = options.out or options.folders[0] / "report.html"
    runs = write_report(options.folders, out, options.rollouts, pictures=_pictures(options))
    print(f"report of {runs} {'run' if runs == 1 else 'runs'}: {out}")
    return 0


def write_report(
    folders: Sequence[Path],
    out: Path,
    rollouts: int = ROLLOUTS,
    *,
    pictures: Pictures | None = None,
) -> int:
    """Writes the report of the runs in or below some folders, and returns how many there are.

    Args:
        folders: Run folders, or folders that hold some.
        out: The HTML file.
        rollouts: Rollouts of each run that the page embeds.
        pictures: Draws answers; the runs' own tasks by default.

    Raises:
        ConfigError: There is no run.
    """
    runs = find_runs(folders)
    page = report_page(runs, pictures or TaskPictures(), rollouts=rollouts)
    write_text(page, out)
    return len(runs)


def _watch(options: argparse.Namespace) -> int:
    find_runs(options.folders)  # a wrong folder is said before the server starts

    def build() -> str:
        runs = find_runs(options.folders)
        return report_page(runs, _pictures(options), rollouts=options.rollouts, live=True)

    return serve(options.folders, build, options.port)


def _pictures(options: argparse.Namespace) -> Pictures:
    return NoPictures() if options.no_pictures else TaskPictures()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vpo-report",
        description="Writes one HTML page about runs: figures, curves, slots, rollouts. It needs "
        "no network to be read.",
    )
    parser.add_argument("folders", type=Path, nargs="+", help="run folders or a sweep's folder")
    parser.add_argument("--out", type=Path, help="default: report.html in the first folder")
    parser.add_argument(
        "--rollouts", type=int, default=ROLLOUTS, help=f"embedded of each run (default {ROLLOUTS})"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="serve the page on this machine only, and refresh it while training runs",
    )
    parser.add_argument("--port", type=int, default=0, help="of --watch; 0 takes a free one")
    parser.add_argument(
        "--no-pictures",
        action="store_true",
        help="do not import the runs' tasks (for run folders from strangers)",
    )
    return parser


def _check(options: argparse.Namespace) -> None:
    if options.rollouts < 0:
        raise ConfigError(f"--rollouts {options.rollouts}: it must be at least 0")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port}: it must be between 0 and 65535")
    if options.out is not None and options.out.is_dir():
        raise ConfigError(f"--out {options.out}: this is a folder; name a file in it")


if __name__ == "__main__":
    sys.exit(main())
