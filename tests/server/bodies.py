"""Parts of request bodies, and the length of a prompt in each protocol."""

from typing import Any

from tests.server.process import Running
from tests.support.asking import assistant as assistant
from tests.support.asking import user as user

CHAT = "/v1/chat/completions"


def function(name: str, **about: Any) -> dict[str, Any]:
    """A tool in OpenAI's chat format."""
    return {"type": "function", "function": {"name": name, **about}}


def tool_call(name: str, arguments: Any = "{}", *, id: str | None = "c") -> dict[str, Any]:
    return {"id": id, **function(name, arguments=arguments)}


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
"""Parameters of the tool weather."""
ASK: Any = [user("Tell me a story about a fox.")]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK, "max_tokens": 2},
    f"{CHAT}/input_tokens": {"messages": ASK},
    "/v1/completions": {"prompt": "Once", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/embedding": {"content": "Hi"},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/v1/messages": {"messages": ASK, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": ASK},
    "/api/chat": {"messages": ASK, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": 2}},
    "/api/show": {"model": ""},
    "/api/pull": {"model": "any"},
    "/completion": {"prompt": "Once", "n_predict": 2},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": ASK},
}
"""What each endpoint can be asked, an answer of two tokens where there is one."""
COUNTS = ("prompt_tokens", "input_tokens", "prompt_eval_count", "tokens_evaluated")


def prompt_length(server: Running, path: str, **body: Any) -> int:
    """The length of a request's prompt, which has another name in each protocol."""
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    *_, last = reply.events
    told = last.get("usage") or last
    (count,) = (told[name] for name in COUNTS if name in told)
    return int(count) + int(told.get("cache_read_input_tokens") or 0)
