"""`/v1/embeddings`, and what llama.cpp and ollama have in its place."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from localspec.errors import NativeError
from localspec.llama.embeddings import Embedder, EmbeddingModel, Vector
from localspec.llama.model import Model
from localspec.server.failures import ApiError
from localspec.server.llama_cpp.texts import reply
from localspec.server.service import Service
from localspec.server.turns import in_turn
from localspec.server.wire import Record

_MOST = 256
"""Texts of a request."""

Input = str | list[str] | list[int] | list[list[int]]


class EmbeddingsRequest(Record):
    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class LlamaRequest(Record):
    model: str | None = None
    content: Input | None = None
    input: Input | None = None


class OllamaRequest(Record):
    model: str | None = None
    input: str | list[str] = ""
    prompt: str = ""
    truncate: bool | None = None


async def openai(service: Service, request: Request) -> Response:
    """Vectors as OpenAI gives them."""
    wanted = await service.read(request, EmbeddingsRequest)
    model = await service.open_model(wanted.model)
    if wanted.dimensions not in (None, model.output_width):
        raise ApiError(
            400,
            f"The model's vectors have {model.output_width} numbers. Leave dimensions out.",
            param="dimensions",
        )
    texts = _tokens(wanted.input, model)
    vectors = await _vectors(service, request, texts)
    count = sum(map(len, texts))
    data = [
        {"object": "embedding", "index": number, "embedding": _told(vector, wanted.encoding_format)}
        for number, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return reply({"object": "list", "data": data, "model": service.host.name, "usage": usage})


async def llama_cpp(service: Service, request: Request) -> Response:
    """Vectors as llama.cpp's own `/embedding` gives them."""
    wanted = await service.read(request, LlamaRequest)
    model = await service.open_model(wanted.model)
    given = wanted.content if wanted.content is not None else wanted.input
    if given is None:
        raise ApiError(400, "content is missing. Give a text, or several.", param="content")
    vectors = await _vectors(service, request, _tokens(given, model))
    return reply([{"index": n, "embedding": [one.tolist()]} for n, one in enumerate(vectors)])


async def ollama(service: Service, request: Request) -> Response:
    """`/api/embed`."""
    started = time.monotonic()
    wanted = await service.read(request, OllamaRequest)
    model = await service.open_model(wanted.model)
    texts = _tokens(wanted.input or [], model)
    vectors = await _vectors(service, request, texts, cut=wanted.truncate is not False)
    return reply(
        {
            "model": service.host.name,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": round((time.monotonic() - started) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, texts)),
        }
    )


async def ollama_single(service: Service, request: Request) -> Response:
    """`/api/embeddings`, which takes one text."""
    wanted = await service.read(request, OllamaRequest)
    model = await service.open_model(wanted.model)
    (vector,) = await _vectors(service, request, _tokens(wanted.prompt, model), cut=True)
    return reply({"embedding": vector.tolist()})


def _tokens(given: Input, model: Model) -> list[Sequence[int]]:
    """The texts as tokens, with what the model wants before them.

    Raises:
        ApiError: too many of them.
        UsageError: a token that there is not.
    """
    found: list[str | list[int]]
    if isinstance(given, str):
        found = [given]
    elif given and isinstance(given[0], int):
        found = [[token for token in given if isinstance(token, int)]]
    else:
        found = [one for one in given if not isinstance(one, int)]
    if len(found) > _MOST:
        raise ApiError(400, f"Give at most {_MOST} texts at a time.", param="input")
    vocabulary = model.vocabulary
    texts: list[Sequence[int]] = []
    for one in found:
        if isinstance(one, str):
            texts.append(vocabulary.tokenize(one, special=False, add_bos=True))
        else:
            texts.append(vocabulary.checked(one))
    return texts


async def _vectors(
    service: Service, request: Request, texts: Sequence[Sequence[int]], *, cut: bool = False
) -> list[Vector]:
    """One for each text, made when it is this request's turn; `cut` what is too long.

    Raises:
        ApiError: the queue is full, a text is too long, or the model cannot do it.
    """
    embedder = await _embedder(service)
    for text in texts:
        if len(text) > embedder.longest and not cut:
            raise ApiError(
                400,
                # The beginning in llama.cpp's words, which clients look for.
                f"The request of {len(text)} tokens exceeds the available context size "
                f"({embedder.longest} tokens) of a text that is embedded. Send it in parts.",
                code="context_length_exceeded",
                param="input",
            )

    def work(left: Callable[[], bool]) -> list[Vector]:
        return [embedder.embed(text[: embedder.longest], left) for text in texts]

    return await in_turn(service, request, work)


async def _embedder(service: Service) -> Embedder | EmbeddingModel:
    try:
        return await service.host.embedder()
    except NativeError as error:
        raise ApiError(501, f"This model gives no embeddings: {error}") from None


def _told(vector: Vector, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
    return vector.tolist()
