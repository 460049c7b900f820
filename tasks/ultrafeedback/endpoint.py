"""Requests to an HTTP endpoint: a deadline, retries, and a cache of replies on disk."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from vpo_lightning.errors import ConfigError
from vpo_lightning.http_reply import read_reply

Reply = TypeVar("Reply")

_MAY_PASS = {408, 409, 425, 429, 500, 502, 503, 504}  # HTTP statuses worth another try

_log = logging.getLogger(__name__)


class EndpointError(Exception):
    """No usable reply.

    Attributes:
        kind: One word for counters: ``refused``, ``unreachable`` or ``unreadable``.
        may_pass: Whether another try may succeed.
    """

    def __init__(self, message: str, kind: str, may_pass: bool = False) -> None:
        super().__init__(message, kind, may_pass)
        self.kind = kind
        self.may_pass = may_pass

    def __str__(self) -> str:
        return self.args[0]


@dataclass(kw_only=True, eq=False)
class Endpoint:
    """An HTTP endpoint that takes and gives JSON.

    Args:
        url: The base URL, for instance ``http://localhost:8000/v1``.
        key_variable: Environment variable that holds the API key; None sends none.
        timeout: Seconds after which a try is given up.
        tries: Number of tries, the first included.
        pause: Seconds before the second try; doubled for each further one.
        cache: Folder of replies, one file each, shared by processes and runs; None keeps none.

    Raises:
        ConfigError: Settings that cannot work.
    """

    url: str
    key_variable: str | None = None
    timeout: float = 60.0
    tries: int = 3
    pause: float = 1.0
    cache: str | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Checks the settings."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"task.judge.endpoint.url={self.url!r}: expected http://host:port/v1")
        for name, least in (("timeout", 1e-3), ("tries", 1), ("pause", 0)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or value < least:
                raise ConfigError(f"task.judge.endpoint.{name}={value!r}: expected {least} or more")
        if self.key_variable is not None and self.key_variable not in os.environ:
            raise ConfigError(
                f"task.judge.endpoint.key_variable={self.key_variable}: no such environment "
                f"variable; set it to the API key, or the config key to null"
            )

    def ask(self, path: str, request: Any, read: Callable[[Any], Reply]) -> Reply:
        """What `read` finds in the reply to a request; from the cache, if it was asked before.

        Only replies that `read` accepts are cached. The key is path and request, so that a server
        that moved keeps its replies.

        Args:
            path: Appended to the URL.
            request: Sent as JSON.
            read: Raises EndpointError for a reply of no use.

        Raises:
            EndpointError: No usable reply after all tries.
        """
        body = json.dumps(request, sort_keys=True).encode()
        place = self._place(path, body)
        if place is not None and place.exists():
            try:
                result = read(json.loads(place.read_bytes()))
            except (OSError, ValueError, EndpointError):
                self.counts["cache_damaged"] += 1  # asked again, and replaced
            else:
                self.counts["cached"] += 1
                return result
        reply = self._post(path, body)
        result = read(reply)
        if place is not None:
            try:
                _write(place, json.dumps(reply))
            except OSError as error:
                self.counts["not_cached"] += 1
                if self.counts["not_cached"] == 1:
                    _log.warning("task.judge.endpoint.cache=%s: %s", self.cache, error)
        return result

    def _place(self, path: str, body: bytes) -> Path | None:
        if self.cache is None:
            return None
        name = hashlib.sha256(path.encode() + b"\n" + body).hexdigest()
        return Path(self.cache).expanduser() / name[:2] / f"{name}.json"

    def _post(self, path: str, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.key_variable is not None:
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable]}"
        request = urllib.request.Request(self.url.rstrip("/") + path, body, headers)
        for attempt in range(1, self.tries + 1):
            self.counts["requests"] += 1
            try:
                return self._try(request)
            except EndpointError as error:
                if attempt == self.tries or not error.may_pass:
                    raise
            time.sleep(self.pause * 2 ** (attempt - 1))
        raise AssertionError("tries is at least 1")

    def _try(self, request: urllib.request.Request) -> Any:
        url = request.full_url
        try:
            return json.loads(read_reply(request, self.timeout))
        except urllib.error.HTTPError as error:
            may_pass = error.code in _MAY_PASS
            raise EndpointError(f"{url} replied {error.code}", "refused", may_pass) from error
        except (OSError, http.client.HTTPException) as error:  # no connection, cut, too slow
            raise EndpointError(f"{url}: {error}", "unreachable", may_pass=True) from error
        except (ValueError, RecursionError) as error:
            raise EndpointError(f"{url} replied no JSON", "unreadable", may_pass=True) from error


def _write(place: Path, text: str) -> None:
    """Writes a file that is there either whole or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.replace(file.name, place)
