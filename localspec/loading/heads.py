"""Opening a trained head beside its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.drafters.eagle import Head
from localspec.drafters.medusa import Medusa, MedusaCache, MedusaWeights
from localspec.errors import DraftMismatch, UsageError
from localspec.gguf.heads import MEDUSA, read_eagle
from localspec.gguf.medusa import read_medusa
from localspec.gguf.reader import read_gguf
from localspec.llama.options import ModelOptions

if TYPE_CHECKING:
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.shared_context import SharedContext


class OpenHead:
    """A head's weights, and the caches over them.

    Attributes:
        model: the weights.
    """

    def __init__(
        self,
        model: Model,
        layers: Sequence[int],
        target: Context | SharedContext,
        room: ModelOptions,
    ) -> None:
        self.model = model
        self._layers, self._target, self._room = layers, target, room
        self._made: list[Head] = []

    def make(self) -> Head:
        """The head, with a cache for one answer."""
        from localspec.llama.eagle_cache import EagleCache

        cache = EagleCache(self.model, self._target.handle, self._room)
        head = Head(cache, self._layers, self._target.model.vocabulary.size)
        self._made.append(head)
        return head

    def close(self) -> None:
        """Free everything."""
        for head in self._made:
            head.cache.close()
        self.model.close()


class OpenMedusa:
    """The same for Medusa's heads.

    Attributes:
        model: the weights.
    """

    def __init__(self, weights: MedusaWeights, target: Context | SharedContext) -> None:
        self.model = weights
        self._target = target

    def make(self) -> Medusa:
        """The heads, for one answer."""
        size = self._target.model.vocabulary.size
        cache = MedusaCache(self.model, size, self._target.capacity)
        return Medusa(cache, self._target.model.layers, size)

    def close(self) -> None:
        """Nothing to free."""


def open_head(
    path: Path,
    target: Context | SharedContext,
    options: ModelOptions,
    progress: Callable[[float], None] | None,
) -> OpenHead | OpenMedusa:
    """A head, whose caches are as long as the target's, or Medusa's heads.

    Raises:
        DraftMismatch: it was made for another target, or this one gives no hidden states.
        UsageError: an adapter for it.
        ModelInvalid, ModelNotFound, NativeError: it cannot be opened.
    """
    from localspec.llama.hidden import require_taps
    from localspec.llama.model import Model

    if options.rpc:
        raise DraftMismatch(
            f"{path.name} is a trained head, which reads the model's hidden states, and with --rpc "
            "these are on other machines. Leave out --rpc, or choose a draft model."
        )
    if options.draft_adapters:
        raise UsageError(
            f"{path.name} is a trained head, which takes no adapter. Leave out --lora-draft."
        )
    if read_gguf(path, tensors=False).architecture == MEDUSA:
        return _open_medusa(path, target, options)
    head = read_eagle(path)
    require_taps(target.model)
    head.require_fits(target.model)
    options = options.for_draft(target.capacity)
    model = Model(path, options, progress=progress, head=True)
    try:
        vocabulary = target.model.vocabulary
        vocabulary.require_shared_with(model.vocabulary)
        if not head.output and vocabulary.size != model.vocabulary.size:
            raise DraftMismatch(
                f"{path.name} is the head of another model: it has a vocabulary of "
                f"{model.vocabulary.size} tokens, and {target.model.path.name} one of "
                f"{vocabulary.size}. Give the head that was trained for this model."
            )
        return OpenHead(model, head.layers, target, options)
    except BaseException:
        model.close()
        raise


def _open_medusa(path: Path, target: Context | SharedContext, options: ModelOptions) -> OpenMedusa:
    from localspec.llama.hidden import require_final

    file, vocabulary = read_medusa(path), target.model.vocabulary
    require_final(target.model)
    file.require_fits(target.model, vocabulary.size, vocabulary.fingerprint())
    if options.parallel > 1:
        raise DraftMismatch(
            f"{path.name} has Medusa heads, which draft for one answer at a time: of passes that "
            "answers share, llama.cpp gives no last hidden states. Open the model with "
            "parallel=1, or choose another drafter."
        )
    heads = range(file.heads)
    # One matrix may serve all of them.
    outputs = {file.output_name(head): head for head in heads}
    matrices = {name: file.output(head) for name, head in outputs.items()}
    return OpenMedusa(
        MedusaWeights(
            path,
            file.file.text("general.name") or path.stem,
            file.size,
            [[file.block(head, number) for number in range(file.blocks)] for head in heads],
            [matrices[file.output_name(head)] for head in heads],
            file.ids(),
        ),
        target,
    )
