import shutil

import pytest


@pytest.fixture(autouse=True)
def bubblewrap():
    """These tests show that the sandbox holds: without it they fail, they are not skipped."""
    if shutil.which("bwrap") is None:
        pytest.fail(
            "bwrap is missing: apt-get install bubblewrap (scripts/test.sh does so as root)"
        )
