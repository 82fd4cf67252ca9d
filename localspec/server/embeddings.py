"""`/v1/embeddings`, and the endpoints of llama.cpp and ollama for the same."""

import asyncio
import base64
import time
from collections.abc import Callable
from typing import Any, Literal

from localspec.errors import NativeError
from localspec.llama.embeddings import Vector
from localspec.server.failures import ApiError
from localspec.server.service import Service
from localspec.server.wire import Record

_MOST = 2048  # as OpenAI's: LangChain sends 1,000 at a time

Input = str | list[str] | list[int] | list[list[int]]


class EmbeddingsRequest(Record):
    """The texts are in `input`; older endpoints have other names for it."""

    model: str | None = None
    input: Input | None = None
    content: Input | None = None
    prompt: Input | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    truncate: bool | None = None
    embd_normalize: Literal[2] | None = None  # llama.cpp's; other norms would be other vectors


async def openai(service: Service, wanted: EmbeddingsRequest) -> Any:
    given = None if wanted.input == [] else wanted.input  # clients fail if they get no vector
    vectors, count = await _vectors(service, wanted, given, "input")
    encoded: list[Any] = [vector.tolist() for vector in vectors]
    if wanted.encoding_format == "base64":
        encoded = [base64.b64encode(one.astype("<f4").tobytes()).decode() for one in vectors]
    data = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(encoded)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": service.host.name, "usage": usage}


async def llama_cpp(service: Service, wanted: EmbeddingsRequest) -> Any:
    if wanted.encoding_format is not None:  # by an OpenAI client whose base URL lacks /v1
        return await openai(service, wanted)
    given = wanted.input if wanted.content is None else wanted.content
    vectors, _ = await _vectors(service, wanted, given, "content")
    return [{"index": n, "embedding": [one.tolist()]} for n, one in enumerate(vectors)]


async def ollama(service: Service, wanted: EmbeddingsRequest) -> Any:
    started = time.monotonic()
    cut = wanted.truncate is not False
    vectors, count = await _vectors(service, wanted, wanted.input or [], "input", cut=cut)
    return {
        "model": service.host.name,
        "embeddings": [vector.tolist() for vector in vectors],
        "total_duration": round((time.monotonic() - started) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": count,
    }


async def ollama_single(service: Service, wanted: EmbeddingsRequest) -> Any:
    if not wanted.prompt:  # a request that only loads the model
        await service.open_model(wanted.model)
        return {"embedding": []}
    (vector,), _ = await _vectors(service, wanted, wanted.prompt, "prompt", cut=True)
    return {"embedding": vector.tolist()}


async def _vectors(
    service: Service,
    wanted: EmbeddingsRequest,
    given: Input | None,
    name: str,
    *,
    cut: bool = False,
) -> tuple[list[Vector], int]:
    """Embed the texts once a slot is free; return a vector for each, and the number of tokens.
    `name`: the field of the texts, for errors."""
    model = await service.open_model(wanted.model)
    if wanted.dimensions not in (None, model.output_width):
        why = f"The model's vectors have {model.output_width} numbers. Leave dimensions out."
        raise ApiError(400, why, param="dimensions")
    if given is None:
        raise ApiError(400, f"{name} is missing or empty. Give a text, or several.", param=name)
    several = isinstance(given, list) and not (given and isinstance(given[0], int))
    found: Any = given if several else [given]
    if len(found) > _MOST:
        raise ApiError(400, f"Give at most {_MOST} texts at a time.", param="input")
    vocabulary = model.vocabulary

    def tokens() -> list[list[int]]:
        return [
            vocabulary.tokenize(one, add_bos=True)
            if isinstance(one, str)
            else vocabulary.check_ids(one)
            for one in found
        ]

    texts = await asyncio.to_thread(tokens)
    try:
        embedder = await service.host.embedder()
    except NativeError as error:
        raise ApiError(501, f"This model provides no embeddings: {error}") from None
    for text in texts:
        if len(text) > embedder.longest and not cut:
            raise ApiError(
                400,
                # It begins with llama.cpp's wording, which clients match.
                f"The request of {len(text)} tokens exceeds the available context size "
                f"({embedder.longest} tokens) for embeddings. Send it in parts.",
                code="context_length_exceeded",
                param="input",
            )

    def work(disconnected: Callable[[], bool]) -> list[Vector]:
        return [embedder.embed(text, disconnected) for text in texts]

    texts = [text[: embedder.longest] for text in texts]
    return await service.run_in_slot(work), sum(map(len, texts))
