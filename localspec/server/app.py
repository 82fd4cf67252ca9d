"""All endpoints, and the conversion of their results and errors to responses."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, get_type_hints

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.server import anthropic, embeddings, llama_cpp, ollama, page, status
from localspec.server.failures import ApiError, as_api_error, error_body
from localspec.server.guard import Guard
from localspec.server.openai import chat, completions, responses
from localspec.server.reply import ClientGone, Reply, json_response
from localspec.server.service import ServerState, Service
from localspec.server.wire import Record
from localspec.text import printable

Handler = Callable[..., Awaitable[Any]]
"""Takes the service, and the body as `wanted`; returns a reply, a response, or a value for JSON."""


ENDPOINTS: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/", page.page),
    ("GET", "/events", page.events),
    ("GET", "/health", status.health),
    ("GET", "/v1/health", status.health),
    ("GET", "/v1/models", status.models),
    ("GET", "/v1/models/{name:path}", status.model),
    ("POST", "/v1/chat/completions", chat.chat_completions),
    ("POST", "/v1/chat/completions/input_tokens", chat.input_tokens),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/responses", responses.responses),
    ("POST", "/v1/responses/input_tokens", responses.input_tokens),
    ("POST", "/v1/embeddings", embeddings.openai),
    ("POST", "/embeddings", embeddings.llama_cpp),
    ("POST", "/embedding", embeddings.llama_cpp),
    ("POST", "/api/embed", embeddings.ollama),
    ("POST", "/api/embeddings", embeddings.ollama_single),
    ("POST", "/v1/messages", anthropic.messages),
    ("POST", "/v1/messages/count_tokens", anthropic.count_tokens),
    ("POST", "/api/chat", ollama.chat),
    ("POST", "/api/generate", ollama.generate),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/ps", ollama.ps),
    ("POST", "/api/show", ollama.show),
    ("POST", "/api/pull", ollama.pull),
    ("GET", "/api/version", ollama.version),
    ("POST", "/completion", llama_cpp.completion),
    ("POST", "/completions", llama_cpp.completion),
    ("POST", "/infill", llama_cpp.infill),
    ("POST", "/tokenize", llama_cpp.tokenize),
    ("POST", "/detokenize", llama_cpp.detokenize),
    ("GET", "/tokenizer_info", llama_cpp.tokenizer_info),
    ("POST", "/apply-template", llama_cpp.apply_template),
    ("GET", "/props", llama_cpp.props),
    ("GET", "/slots", status.slots),
    ("POST", "/slots/{number:int}", llama_cpp.save_or_restore),
    ("GET", "/metrics", status.metrics),
)

_WITHOUT_MODEL = (page.page, ollama.version)
"""GET endpoints that answer before the first model has been loaded, too."""
_RANKING = "Reranking needs a dedicated model, which localspec cannot serve. Use llama-server."
NOT_OFFERED = {
    **dict.fromkeys(("/rerank", "/v1/rerank", "/reranking", "/v1/reranking"), _RANKING),
    "/lora-adapters": "Adapters cannot be changed while the server runs. Start it with --lora.",
    "/props": "Settings cannot be changed while the server runs. Send them with each request.",
    "/v1/audio/transcriptions": "The model reads text only.",
    "/v1/images/generations": "The model writes text only.",
    "/api/push": "Models are not pushed from here.",
    "/api/create": "Models are not created here.",
    "/api/copy": "Models are not copied here.",
    "/api/delete": "Models are not deleted here. Run 'localspec rm NAME'.",
}


def record_of(handler: Handler) -> type[Record] | None:
    return get_type_hints(handler).get("wanted")


class Application:
    def __init__(self, state: ServerState, handler: Handler) -> None:
        self._state = state
        self._handler = handler
        self._record = record_of(handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = Service(self._state, Request(scope, receive))
        try:
            with suppress(ClientGone):
                response = await self._response(service)
                await response(scope, receive, send)
        finally:
            service.leave()

    async def _response(self, service: Service) -> Response:
        try:
            if self._record is None and self._handler not in _WITHOUT_MODEL:
                service.require_started()
            arguments = () if self._record is None else (await service.read(self._record),)
            result = await self._handler(service, *arguments)
            if isinstance(result, Reply):
                return await result.response(service.request)
            if isinstance(result, Response):
                return result
            # A long one would delay other clients; health must not wait for threads.
            return (
                await asyncio.to_thread(json_response, result)
                if arguments
                else json_response(result)
            )
        except ClientGone:
            raise
        except Exception as error:
            return failure(service.request.url.path, as_api_error(error))


def failure(path: str, error: ApiError) -> Response:
    return json_response(error_body(path, error), error.status, error.headers)


def build(state: ServerState) -> ASGIApp:
    async def not_found(request: Request, error: Exception) -> Response:
        path = printable(request.url.path, 100)
        refused = ApiError(404, f"There is no endpoint {path}. See docs/serve.md.")
        if headers := getattr(error, "headers", None):
            refused = ApiError(405, f"{request.method} is not supported. Use {headers['Allow']}.")
        response = failure(request.url.path, refused)
        response.headers.update(headers or {})
        return response

    async def not_offered(request: Request) -> Response:
        path = request.url.path
        return failure(path, ApiError(501, NOT_OFFERED[path]))

    # Paths below /v1 also work without it, except where llama.cpp has other endpoints.
    short = [(method, path.removeprefix("/v1"), handler) for method, path, handler in ENDPOINTS]
    routes = [
        Route(path, Application(state, handler), methods=[method])
        for method, path, handler in (*ENDPOINTS, *short)
    ]
    routes += [Route(path, not_offered, methods=["POST", "DELETE", "GET"]) for path in NOT_OFFERED]
    app = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found})
    app.router.redirect_slashes = False
    return Guard(app, state)
