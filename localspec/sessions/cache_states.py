"""The caches of a conversation, collected and restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from localspec.drafters.mapped_cache import MappedCache
from localspec.errors import NativeError, SessionError
from localspec.llama.native_context import CacheFull
from localspec.llama.sequence_state import State
from localspec.policy.profile import PairProfile
from localspec.sessions.session_file import FORMAT, Damaged, Part, SessionFile, write

TARGET, DRAFT = "target", "draft"


class StatefulCache(Protocol):
    """A cache whose memory can be had as bytes, such as `localspec.llama.context.Context`."""

    tokens: list[int]

    @property
    def capacity(self) -> int: ...

    def state(self) -> State: ...

    def set_state(self, tokens: Sequence[int], state: State) -> None: ...

    def clear(self) -> None: ...


class CacheStates:
    """The caches of a pair, and what else belongs to a conversation: estimates of the profile, and
    alignment (`mapped`) of a draft model with another vocabulary."""

    def __init__(
        self,
        target: StatefulCache,
        draft: StatefulCache | None,
        mapped: MappedCache | None,
        profile: PairProfile,
        identity: Mapping[str, Any],
    ) -> None:
        self._target, self._draft, self._mapped = target, draft, mapped
        self._profile = profile
        self.identity = dict(identity) | {"format": FORMAT}

    @property
    def tokens(self) -> list[int]:
        return self._target.tokens

    @property
    def capacity(self) -> int:
        return self._target.capacity

    def save(self, path: Path, conversation: Any = None) -> None:
        """Write all of it, and a conversation as JSON values. A damaged session at `path` is kept
        aside. A SessionError if it cannot be written, or would replace something else."""
        facts, parts = self.collect(conversation)
        with suppress(FileNotFoundError):
            try:
                SessionFile(path)
            except Damaged:
                with suppress(OSError):
                    path.replace(path.with_name(f"{path.name}.damaged"))
        write(path, facts, parts)

    def collect(self, conversation: Any = None) -> tuple[dict[str, Any], dict[str, Part]]:
        """Facts and parts to write; a SessionError if they cannot be had."""
        try:
            parts: dict[str, Part] = {f"{TARGET}.tokens": _numbers(self._target.tokens)}
            if self._target.tokens:
                parts[TARGET] = self._target.state()
            if self._draft is not None and self._draft.tokens:
                parts[f"{DRAFT}.tokens"] = _numbers(self._draft.tokens)
                if self._mapped is not None:
                    held, stops = self._mapped.alignment()
                    parts[f"{DRAFT}.held"] = _numbers(held)
                    parts[f"{DRAFT}.stops"] = _numbers(stops)
                parts[DRAFT] = self._draft.state()
        except (NativeError, MemoryError) as error:
            raise SessionError(
                f"The session cannot be kept: {str(error) or 'there is not enough memory'}"
            ) from None
        draft = 0 if self._draft is None else len(self._draft.tokens)
        facts = {
            "identity": self.identity,
            "lengths": {TARGET: len(self._target.tokens), DRAFT: draft},
            "learned": self._profile.learned(),
            "conversation": conversation,
        }
        return facts, parts

    def misfits(self, file: SessionFile) -> dict[str, str]:
        """Why TARGET, without which nothing can serve, or DRAFT of a file cannot serve here."""
        found = self._differs(file, TARGET)
        if found is None and file.facts["lengths"][TARGET] > self._target.capacity:
            found = (
                f"it has {file.facts['lengths'][TARGET]} tokens, and the context "
                f"{self._target.capacity} (--ctx)"
            )
        if found is not None:
            return {TARGET: found}
        if self._draft is None:
            return {}
        found = self._differs(file, DRAFT)
        if found is None and file.facts["lengths"][DRAFT] > self._draft.capacity:
            found = "the draft model's context is shorter (--ctx)"
        return {} if found is None else {DRAFT: found}

    def restore(self, file: SessionFile) -> list[str]:
        """Put what fits into the caches; why some of it was left out, parts of a sentence.
        CacheFull if a shared context has no room now."""
        misfits, notes = self.misfits(file), []
        try:
            if TARGET not in misfits:
                self._put(file, TARGET, self._target)
                if self._draft is not None and DRAFT not in misfits and DRAFT in file:
                    self._put(file, DRAFT, self._draft)
        except CacheFull:
            raise
        except (SessionError, NativeError) as error:
            notes.append(str(error).rstrip("."))
        try:
            self._profile.relearn(file.facts.get("learned"))
        except ValueError as error:
            notes.append(f"what was learned is damaged ({error})")
        return notes

    def _differs(self, file: SessionFile, of: str) -> str | None:
        theirs = file.facts.get("identity")
        if not isinstance(theirs, dict) or theirs.get("format") != FORMAT:
            return "it was written by another version of localspec"
        if theirs.get("library") != self.identity.get("library"):
            return "it was written with another version of llama.cpp"
        if theirs.get("kv") != self.identity.get("kv"):
            return "the KV cache has other types (--kv-type, --flash-attention)"
        if theirs.get(of) != self.identity.get(of):
            name = (theirs.get(of) or {}).get("name")
            ours = (self.identity.get(of) or {}).get("name")
            if name is None:
                return "it was written without a draft model"
            if name == ours:
                if (theirs.get(of) or {}).get("lora") != (self.identity.get(of) or {}).get("lora"):
                    return f"{name} had other adapters (--lora)"
                return f"{name} is another file than it was"
            return f"it is of {name}"
        if of == DRAFT and theirs.get("way") != self.identity.get("way"):
            return "the draft model's vocabulary is treated otherwise (--cross-vocabulary)"
        return None

    def _put(self, file: SessionFile, of: str, cache: StatefulCache) -> None:
        tokens = file.part(f"{of}.tokens").tolist()
        state = file.part(of) if tokens else None
        mapped = self._mapped if of == DRAFT else None
        if mapped is not None:
            held, stops = (file.part(f"{DRAFT}.{what}").tolist() for what in ("held", "stops"))
            mapped.clear()
        if state is None:
            cache.clear()
        else:
            cache.set_state(tokens, state)
        if mapped is not None:
            mapped.align(held, stops)


def identity(known: Mapping[str, Any]) -> dict[str, Any]:
    """What the states of caches depend on, out of `cost_identity`."""
    target, draft = [*known["models"], None][:2]
    return {
        "library": known["library"],
        "kv": [*known["kv"], known["flash_attention"]],
        # Others' numbers are close, and not the same bits.
        "kernels": [one == "stock" for one in known["kernels"]],
        TARGET: target,
        DRAFT: draft,
        "way": known.get("vocabulary"),
    }


def _numbers(tokens: Sequence[int]) -> Part:
    return np.array(tokens, np.int32)
