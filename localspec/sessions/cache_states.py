"""Saving and restoring the caches of a conversation."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from localspec.drafters.mapped_cache import MappedCache
from localspec.errors import NativeError, SessionError
from localspec.llama.context import Context
from localspec.llama.native_context import CacheFull
from localspec.sessions.session_file import FORMAT, Part

TARGET, DRAFT = "target", "draft"
_ALIGNMENT = f"{DRAFT}.held", f"{DRAFT}.stops"


Stored = Callable[[str], Part]
"""Returns a stored part by its name. Raises SessionError."""


class CacheStates:
    """The caches of a pair, and the alignment of a draft model with another vocabulary."""

    def __init__(
        self, target: Context, draft: Context | MappedCache | None, identity: Mapping[str, Any]
    ) -> None:
        self.target, self._mapped = target, draft if isinstance(draft, MappedCache) else None
        inner: Any = draft if self._mapped is None else self._mapped.inner
        self._caches = {TARGET: target} if inner is None else {TARGET: target, DRAFT: inner}
        self.identity = dict(identity) | {"format": FORMAT}

    def collect(self, conversation: Any = None) -> tuple[dict[str, Any], dict[str, Part]]:
        """The facts and parts to write, with a conversation of JSON values. Raises SessionError if
        a state cannot be read."""
        parts: dict[str, Part] = {}
        if self._mapped is not None:
            for name, numbers in zip(_ALIGNMENT, self._mapped.alignment(), strict=True):
                parts[name] = np.array(numbers, np.int32)
        try:
            for name, cache in self._caches.items():
                parts[f"{name}.tokens"] = np.array(cache.tokens, np.int32)
                if cache.tokens:
                    parts[name] = cache.state()
        except (NativeError, MemoryError) as error:
            raise SessionError(
                f"The session cannot be saved: {str(error) or 'there is not enough memory'}"
            ) from None
        lengths = {name: len(cache.tokens) for name, cache in self._caches.items()}
        facts = {
            "identity": self.identity,
            "lengths": {DRAFT: 0} | lengths,
            "conversation": conversation,
        }
        return facts, parts

    def misfits(self, facts: Mapping[str, Any]) -> dict[str, str]:
        """Why the TARGET state (required) or the DRAFT state is unusable here."""
        found = {}
        for name, cache in self._caches.items():
            why, length = self._differs(facts, name), facts["lengths"][name]
            if why is None and length > cache.capacity:
                why = f"it has {length} tokens, and the context {cache.capacity} (--ctx)"
                if name == DRAFT:
                    why = "the draft model's context is shorter (--ctx)"
            if why is not None:
                found[name] = why
        return found

    def restore(self, facts: Mapping[str, Any], stored: Stored) -> list[str]:
        """Restore the usable states; returns why others were left out, as parts of a sentence.
        Raises CacheFull if a shared context has no room now."""
        misfits, notes = self.misfits(facts), []
        try:
            for name, cache in self._caches.items():
                if not misfits.keys() & {TARGET, name} and (
                    name == TARGET or facts["lengths"][name]
                ):
                    self._put(stored, name, cache)
        except CacheFull:
            raise
        except (SessionError, NativeError) as error:
            notes.append(str(error).rstrip("."))
        return notes

    def _differs(self, facts: Mapping[str, Any], of: str) -> str | None:
        theirs, ours = facts.get("identity"), self.identity
        if not isinstance(theirs, dict) or theirs.get("format") != FORMAT:
            return "it was written by another version of localspec"
        if theirs.get("library") != ours.get("library"):
            return "it was written with another version of llama.cpp"
        if theirs.get("kv") != ours.get("kv"):
            return "the KV cache has different types (--kv-type, --flash-attention)"
        if (theirs.get("kernels") or [])[:1] != ours["kernels"][:1]:
            return "other kernels wrote it (--kernels)"
        their, our = theirs.get(of) or {}, ours.get(of) or {}
        if their != our:
            name = their.get("name")
            if name is None:
                return "it was written without a draft model"
            if name != our.get("name"):
                return f"it was saved with {name}"
            if their.get("lora") != our.get("lora"):
                return f"{name} had different adapters (--lora)"
            return f"{name} is a different file now"
        if of == DRAFT and theirs.get("way") != ours.get("way"):
            return "the draft model's vocabulary is treated differently (--cross-vocabulary)"
        return None

    def _put(self, stored: Stored, of: str, cache: Context) -> None:
        tokens = stored(f"{of}.tokens").tolist()
        state = stored(of) if tokens else None
        mapped = self._mapped if of == DRAFT else None
        if mapped is not None:
            alignment = [stored(name).tolist() for name in _ALIGNMENT]
            mapped.clear()
        if state is None:
            cache.clear()
        else:
            cache.set_state(tokens, state)
        if mapped is not None:
            mapped.align(*alignment)


def identity(known: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `cost_identity` that cache states depend on."""
    target, draft = [*known["models"], None][:2]
    return {
        "library": known["library"],
        "kv": [*known["kv"], known["flash_attention"]],
        # Other kernels give similar numbers, but not the same bits.
        "kernels": [one == "stock" for one in known["kernels"]],
        TARGET: target,
        DRAFT: draft,
        "way": known.get("vocabulary"),
    }
