"""Record answers of chats in their target's trace, where the user turned that on."""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from localspec.decoding.logprobs import TokenLogprob
from localspec.distill import folders
from localspec.distill.trace import Trace, TraceHeader, TraceRecord
from localspec.errors import LocalspecError, TraceError

OF_CONVERSATION = 8
"""Bytes of a key that identify the conversation."""
HELD_BACK = 8
"""One in HELD_BACK conversations is held back from training."""


def record_answer(
    folder: Path,
    header: TraceHeader,
    conversation: str,
    prompt: Sequence[int],
    answer: Sequence[TokenLogprob],
) -> None:
    """Add an answer with its `header.k` likeliest tokens to a target's trace. `prompt`: all tokens
    before the answer. Raises as `Trace`."""
    if not answer or not prompt:
        return
    text = np.array([*prompt, *(row.token for row in answer)], "<i4").tobytes()
    begin = _begin(conversation)
    key = begin + hashlib.sha256(text).digest()[:OF_CONVERSATION]
    with Trace(folder / folders.TRACE, header) as trace:
        known = {other[:OF_CONVERSATION]: held for other, held in trace.chats.items()}
        held_back = known.get(begin, len(known) % HELD_BACK == 1)
        trace.append(TraceRecord.of(key, prompt, answer, held_back, chat=True))


def forget(conversations: Collection[str] | None = None) -> int:
    """Remove conversations (None: all) from every trace, with trainings on them; returns the number
    of answers. Finished drafts stay. A TraceError as of `Trace`, after removing all it can."""
    begins = None if conversations is None else {_begin(each) for each in conversations}
    gone, problems = 0, []
    for target in folders.recorded_targets():
        if target.problem is not None:
            problems.append(target.problem)
        elif target.chats:
            try:
                gone += _erase(target.folder, begins)
            except LocalspecError as error:
                problems.append(str(error))
    if problems:
        raise TraceError(problems[0])
    return gone


def _erase(folder: Path, begins: Collection[bytes] | None) -> int:
    with Trace(folder / folders.TRACE) as trace:
        found = [key for key in trace.chats if begins is None or key[:OF_CONVERSATION] in begins]
        if found:
            for run in folder.glob(f"{folders.RUN}*"):
                folders.remove(run)
            trace.erase(found)
    return len(found)


def _begin(conversation: str) -> bytes:
    return hashlib.sha256(conversation.encode()).digest()[:OF_CONVERSATION]
