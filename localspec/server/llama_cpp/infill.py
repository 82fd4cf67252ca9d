"""`/infill`: the text between two others, for editors."""

from __future__ import annotations

from localspec import Engine
from localspec.prompting.prompt import Tokens
from localspec.server.failures import ApiError
from localspec.server.llama_cpp.completion import Completion, replied
from localspec.server.reply import Reply
from localspec.server.service import Service
from localspec.server.wire import Record

_LONGEST = 128
"""Tokens of the answer that room is left for, where the request sets no limit."""


class Extra(Record):
    text: str
    filename: str = "tmp"


class Infill(Completion):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: tuple[Extra, ...] | list[Extra] = ()
    prompt: str = ""


async def infill(service: Service, wanted: Infill) -> Reply:
    engine = await service.open(wanted.model)
    return await replied(service, engine, wanted, [_prompt(wanted, engine)])


def _prompt(wanted: Infill, engine: Engine) -> Tokens:
    """Prefix and suffix between the model's own tokens for that, other files before them. Of a text
    that is too long the part nearest to the gap is kept, three quarters prefix, one suffix."""
    vocabulary = engine.model.vocabulary
    marks = vocabulary.filling()
    if not {"pre", "suf", "mid"} <= marks.keys():
        raise ApiError(
            501,
            "This model has no tokens for filling in the middle. Use a code model that has, or "
            "/completion.",
        )

    def tokens(text: str) -> list[int]:
        return vocabulary.tokenize(text, special=False, add_bos=False)

    answer = wanted.longest if wanted.longest and wanted.longest > 0 else _LONGEST
    room = max(16, engine.context_length - min(answer, engine.context_length // 2) - 8)
    prefix, suffix = tokens(wanted.input_prefix), tokens(wanted.input_suffix)
    begun = tokens(wanted.prompt)[-room // 4 :]
    suffix = suffix[: max(0, room // 4 - len(begun))]
    prefix = prefix[max(0, len(prefix) - (room * 3 // 4)) :] + begun
    others: list[int] = []
    for extra in wanted.input_extra:
        if "sep" in marks:
            others += [marks["sep"], *tokens(f"{extra.filename}\n")]
        else:
            others += tokens("\n\n--- snippet ---\n\n")
        others += tokens(extra.text)
    if others and "rep" in marks:
        others = [marks["rep"], *tokens("myproject\n"), *others]
    if others and "sep" in marks:
        others += [marks["sep"], *tokens("filename\n")]
    left = room - len(prefix) - len(suffix)
    others = others[max(0, len(others) - left) :] if left > 0 else []
    start = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos >= 0 else []
    filled = [marks["pre"], *prefix, marks["suf"], *suffix, marks["mid"]]
    return Tokens([*start, *others, *filled])
