"""Makes a small file of problems from the published ones, which hold gigabytes of tests.

``python -m vpo_lightning.tasks.livecodebench.prepare test.jsonl test2.jsonl ... --out lcb.jsonl``,
then ``task.train_path=lcb.jsonl task.test_path=lcb.jsonl``. The file is in the same schema and
gives the same prompt rows, in seconds instead of minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.livecodebench.problem_tests import ProblemTest, read_tests, smallest_tests
from vpo_lightning.tasks.livecodebench.rows import MAX_TESTS, parse_day
from vpo_lightning.tasks.records import open_records

_KEPT = ("question_title", "question_id", "question_content", "starter_code", "difficulty")


def prepare(paths: Sequence[str | Path], out: str | Path, most_characters: int = 8192) -> int:
    """The number of problems written to `out`, each with its 16 smallest tests.

    Args:
        paths: Files of code_generation_lite, ``.jsonl`` or ``.parquet``.
        out: The file to write; it replaces an older one only when it is complete.
        most_characters: Longest test, input and output together.

    Raises:
        ConfigError: A file or row that cannot be read.
    """
    count, partial = 0, Path(f"{out}.partial")
    with partial.open("w") as file:
        for path in paths:
            for record in open_records(path, "input"):
                file.write(json.dumps(_smaller(record, most_characters)) + "\n")
                count += 1
    os.replace(partial, out)
    return count


def _smaller(record: Fields, most_characters: int) -> Mapping[str, Any]:
    tests = smallest_tests(read_tests(record), MAX_TESTS, most_characters)
    kept = {name: record.values.get(name) for name in _KEPT}
    return {
        **kept,
        "contest_date": parse_day(record.values.get("contest_date")).isoformat(),
        "metadata": record.values.get("metadata"),
        "public_test_cases": json.dumps([_stored(test) for test in tests if test.is_public]),
        "private_test_cases": json.dumps([_stored(test) for test in tests]),
    }


def _stored(test: ProblemTest) -> Mapping[str, str]:
    return {"input": test.input, "output": test.output, "testtype": test.kind}


def main() -> None:
    """Reads the command line; exit status 2 with one line for what cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="+", help=".jsonl or .parquet files of code_generation_lite")
    parser.add_argument("--out", required=True, help="the .jsonl file to write")
    arguments = parser.parse_args()
    try:
        count = prepare(arguments.paths, arguments.out)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"{count} problems in {arguments.out}")


if __name__ == "__main__":
    main()
