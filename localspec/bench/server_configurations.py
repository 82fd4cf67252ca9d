"""llama-server's ways to speculate. Flags and defaults of llama-cpp-python 0.3.36."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServerConfiguration:
    """One way; `flags` are those besides models, context and threads."""

    name: str
    flags: tuple[str, ...]
    needs_draft: bool = False


_DEFAULT_DEPTH = 3
_NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def _draft(depth: int, p_min: float | None = None, ngram: str | None = None) -> ServerConfiguration:
    types = "draft-simple" if ngram is None else f"draft-simple,{ngram}"
    flags = ["--spec-type", types, "--spec-draft-n-max", str(depth)]
    name = f"draft {depth}"
    if p_min is not None:
        flags += ["--spec-draft-p-min", f"{p_min:g}"]
        name += f" p-min {p_min:g}"
    elif depth == _DEFAULT_DEPTH and ngram is None:
        name += " (default)"
    if ngram is not None:
        # The n-gram goes first, whatever the order, and the model where it finds nothing.
        name += f" + {ngram}"
    return ServerConfiguration(name, tuple(flags), needs_draft=True)


SERVER_CONFIGURATIONS: tuple[ServerConfiguration, ...] = (
    ServerConfiguration("plain", ("--spec-type", "none")),
    *(_draft(depth) for depth in (*range(1, 9), 16)),
    *(_draft(depth, p_min) for depth in (7, 16) for p_min in (0.4, 0.6)),
    # ngram-mod is what --spec-default stands for.
    *(ServerConfiguration(n, ("--spec-type", n)) for n in _NGRAM),
    *(_draft(_DEFAULT_DEPTH, ngram=ngram) for ngram in _NGRAM),
    _draft(7, 0.4, "ngram-mod"),
)


def server_configurations(names: Sequence[str] | None = None) -> list[ServerConfiguration]:
    """The named configurations, None for all. Raises UsageError: an unknown name."""
    known = {configuration.name: configuration for configuration in SERVER_CONFIGURATIONS}
    if names is None:
        return list(SERVER_CONFIGURATIONS)
    for name in names:
        if name not in known:
            raise UsageError(
                f"llama-server has no configuration '{name}' here. Choose from {', '.join(known)}."
            )
    return [known[name] for name in names]
