"""The error a user can mend by changing a config key or a file."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting or input file that cannot work.

    Entry points print its message as one line and exit with status 2, so the message says what was
    given, what was expected, and which config key (or file and row) to change.
    """
