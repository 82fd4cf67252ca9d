"""All endpoints, and what becomes of an error in one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.server import basics, embeddings, page
from localspec.server.anthropic import messages
from localspec.server.events import ClientGone
from localspec.server.failures import ApiError, as_api_error, error_body
from localspec.server.guard import Guard
from localspec.server.llama_cpp import figures, slots, texts
from localspec.server.llama_cpp.completion import completion
from localspec.server.llama_cpp.infill import infill
from localspec.server.ollama import answering, models
from localspec.server.openai.chat import chat_completions, input_tokens
from localspec.server.openai.completions import completions
from localspec.server.openai.responses import responses
from localspec.server.service import Common, Service

Handler = Callable[[Service, Request], Awaitable[ASGIApp]]

ENDPOINTS: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/", page.page),
    ("GET", "/events", page.events),
    ("GET", "/health", basics.health),
    ("GET", "/v1/health", basics.health),
    ("GET", "/v1/models", basics.models),
    ("GET", "/models", basics.models),
    ("GET", "/v1/models/{name:path}", basics.model),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/chat/completions", chat_completions),
    ("POST", "/v1/chat/completions/input_tokens", input_tokens),
    ("POST", "/chat/completions/input_tokens", input_tokens),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/responses", responses),
    ("POST", "/v1/embeddings", embeddings.openai),
    ("POST", "/embeddings", embeddings.llama_cpp),
    ("POST", "/embedding", embeddings.llama_cpp),
    ("POST", "/api/embed", embeddings.ollama),
    ("POST", "/api/embeddings", embeddings.ollama_single),
    ("POST", "/v1/messages", messages.messages),
    ("POST", "/v1/messages/count_tokens", messages.count_tokens),
    ("POST", "/api/chat", answering.chat),
    ("POST", "/api/generate", answering.generate),
    ("GET", "/api/tags", models.tags),
    ("GET", "/api/ps", models.ps),
    ("POST", "/api/show", models.show),
    ("GET", "/api/version", models.version),
    ("POST", "/completion", completion),
    ("POST", "/completions", completion),
    ("POST", "/infill", infill),
    ("POST", "/tokenize", texts.tokenize),
    ("POST", "/detokenize", texts.detokenize),
    ("GET", "/tokenizer_info", texts.tokenizer_info),
    ("POST", "/apply-template", texts.apply_template),
    ("GET", "/props", texts.props),
    ("GET", "/slots", figures.slots),
    ("POST", "/slots/{number:int}", slots.act),
    ("GET", "/metrics", figures.metrics),
)
"""Methods, paths, and who answers."""

NOT_OFFERED = {
    "/rerank": "Ranking needs a model that was made for it, and those do not generate text.",
    "/v1/rerank": "Ranking needs a model that was made for it, and those do not generate text.",
    "/reranking": "Ranking needs a model that was made for it, and those do not generate text.",
    "/v1/reranking": "Ranking needs a model that was made for it, and those do not generate text.",
    "/lora-adapters": "Adapters are not supported. Merge them into the model.",
    "/props": "Settings cannot be changed while the server runs. Send them with each request.",
    "/v1/audio/transcriptions": "The model reads text only.",
    "/v1/images/generations": "The model writes text only.",
    "/api/pull": "Models are not fetched here. Type localspec pull NAME.",
    "/api/push": "Models are not sent away here.",
    "/api/create": "Models are not made here.",
    "/api/copy": "Models are not copied here.",
    "/api/delete": "Models are not removed here. Type localspec rm NAME.",
}
"""What other servers have at these paths and this one has not, with why."""


class Endpoint:
    """A handler as an application of its own: errors become replies."""

    def __init__(self, common: Common, handler: Handler) -> None:
        self._common = common
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, service = Request(scope, receive), Service(self._common)
        try:
            try:
                response = await self._handler(service, request)
            except ClientGone:
                response = Response(status_code=499)
            except Exception as error:
                response = failure(scope["path"], as_api_error(error))
            await response(scope, receive, send)
        finally:
            service.leave()


class NotOffered:
    """What says that there is nothing at a path, and why."""

    def __init__(self, path: str, why: str) -> None:
        self._path, self._why = path, why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await failure(self._path, ApiError(501, self._why))(scope, receive, send)


def failure(path: str, error: ApiError) -> Response:
    """The reply that an error makes."""
    headers = dict(error.headers)
    if error.status in (408, 413):  # the rest of the body would be taken for a request
        headers["Connection"] = "close"
    return JSONResponse(error_body(path, error), error.status, headers)


def build(common: Common) -> ASGIApp:
    """The application of a server."""
    routes = [
        Route(path, Endpoint(common, handler), methods=[method])
        for method, path, handler in ENDPOINTS
    ]

    async def not_found(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        told = (
            "There is no such endpoint. See docs/serve.md."
            if status == 404
            else "That method is not for this."
        )
        return failure(request.url.path, ApiError(status, told))

    routes += [
        Route(path, NotOffered(path, why), methods=["POST", "DELETE", "GET"])
        for path, why in NOT_OFFERED.items()
    ]
    app = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found})
    app.router.redirect_slashes = False
    return Guard(app, common.options, common.traffic)
