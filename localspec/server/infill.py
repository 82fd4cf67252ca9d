"""Prompts for filling in the middle of a text, with the model's infill tokens."""

from collections.abc import Sequence

from localspec import Engine
from localspec.prompting.prompt import Tokens
from localspec.server.failures import ApiError

_RESERVED = 128
"""Tokens reserved for the infilled text if the request sets no limit."""
_SNIPPET = "\n\n--- snippet ---\n\n"


def infill_prompt(
    engine: Engine,
    prefix: str,
    suffix: str,
    *,
    limit: int | None,
    begun: str = "",
    files: Sequence[tuple[str, str]] = (),
) -> Tokens:
    """Build an infill prompt, after other files. Long texts keep the part next to the gap: three
    quarters of the room for the prefix, one for the suffix.

    Args:
        limit: most tokens of the infilled text; None and negative values set none.
        begun: its beginning.
        files: name and text of each.

    Raises:
        ApiError: the model has no infill tokens.
    """
    vocabulary = engine.model.vocabulary
    marks = vocabulary.infill_tokens()
    if not {"pre", "suf", "mid"} <= marks.keys():
        why = "This model has no tokens for filling in the middle. Use a code model that has them."
        raise ApiError(501, why)

    def tokens(text: str) -> list[int]:
        return vocabulary.tokenize(text)

    answer = max(0, limit or 0) or _RESERVED
    room = max(16, engine.context_length - min(answer, engine.context_length // 2) - 8)
    before, after, start = tokens(prefix), tokens(suffix), tokens(begun)[-room // 4 :]
    after = after[: max(0, room // 4 - len(start))]
    before = before[max(0, len(before) - (room * 3 // 4)) :] + start
    context: list[int] = []
    for name, text in files:
        context += [marks["sep"], *tokens(f"{name}\n")] if "sep" in marks else tokens(_SNIPPET)
        context += tokens(text)
    if context and "rep" in marks:
        context = [marks["rep"], *tokens("myproject\n"), *context]
    if context and "sep" in marks:
        context += [marks["sep"], *tokens("filename\n")]
    left = room - len(before) - len(after)
    context = context[max(0, len(context) - left) :] if left > 0 else []
    bos = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos >= 0 else []
    return Tokens([*bos, *context, marks["pre"], *before, marks["suf"], *after, marks["mid"]])
