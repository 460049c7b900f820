"""Errors in the shape that OpenAI clients read."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """What is wrong with a request, or why it cannot be served now.

    Args:
        status: HTTP status.
        message: What was given and what was expected.
        param: The field at fault.
        code: A word for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {
            "error": {
                "message": _sendable(self.message),
                "type": kind,
                "param": None if self.param is None else _sendable(self.param),
                "code": self.code,
            }
        }


def _sendable(text: str) -> str:
    """The text without halves of surrogate pairs, which a client may send and nobody can encode."""
    return text.encode("utf-8", "replace").decode()
