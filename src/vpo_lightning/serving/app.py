"""The HTTP side: an OpenAI-compatible ASGI application."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vpo_lightning.serving.api_error import ApiError
from vpo_lightning.serving.chat_request import parse_request
from vpo_lightning.serving.service import ChatService

_BODY_SECONDS = 30.0  # a client that sends its body more slowly is given up
_CLIENT_GONE_STATUS = 499

Handler = Callable[[Request], Awaitable[Response]]


def create_app(service: ChatService, api_key: str | None = None) -> Starlette:
    """The application.

    Args:
        service: Answers chat completion requests.
        api_key: Every request but ``/health`` needs it as a bearer token; None needs none.
    """

    def guarded(handler: Handler) -> Handler:
        async def endpoint(request: Request) -> Response:
            if api_key is not None and not _has_key(request, api_key):
                raise ApiError(401, "a valid API key is needed", code="invalid_api_key")
            return await handler(request)

        return endpoint

    async def chat(request: Request) -> Response:
        parsed = parse_request(await read_body(request, service.limits.body_bytes), service.limits)
        return JSONResponse(await service.complete(parsed))

    async def models(request: Request) -> Response:
        del request
        card = {"id": service.model, "object": "model", "created": 0, "owned_by": "vpo-lightning"}
        card["max_model_len"] = service.positions
        return JSONResponse({"object": "list", "data": [card]})

    async def health(request: Request) -> Response:
        del request
        return JSONResponse({"status": "ok", "waiting": service.batcher.num_waiting})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        await asyncio.to_thread(service.batcher.close)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", guarded(chat), methods=["POST"]),
            Route("/v1/models", guarded(models), methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers=ERROR_HANDLERS,
        lifespan=lifespan,
    )


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        ApiError: Status 413 if it is too long, 408 if it comes too slowly.
    """
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise ApiError(
                        413, f"the body has more than {most_bytes} bytes", code="too_large"
                    )
    except TimeoutError:
        raise ApiError(408, f"no body within {_BODY_SECONDS:g} s", code="timeout") from None
    return bytes(body)


def _has_key(request: Request, api_key: str) -> bool:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    # Headers are latin-1; both sides as bytes, so that the comparison takes the same time.
    is_equal = hmac.compare_digest(given.strip().encode("latin-1", "replace"), api_key.encode())
    return kind.lower() == "bearer" and is_equal


async def _api_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, ApiError)
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), error.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(ApiError(error.status_code, message).body(), error.status_code)


async def _gone(request: Request, error: Exception) -> Response:
    del request, error
    return Response(status_code=_CLIENT_GONE_STATUS)


async def _unexpected(request: Request, error: Exception) -> Response:
    del request
    body: dict[str, Any] = ApiError(500, f"internal error: {type(error).__name__}").body()
    return JSONResponse(body, 500)


ERROR_HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    ApiError: _api_error,
    HTTPException: _http_error,
    ClientDisconnect: _gone,
    Exception: _unexpected,
}
"""Every error in the OpenAI shape."""
