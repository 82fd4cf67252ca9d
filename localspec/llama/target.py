from collections.abc import Callable, Sequence

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.tree import TokenTree
from localspec.llama.context import Context
from localspec.llama.pictures import Picture, with_picture_ids


class LlamaTarget:
    """Implements `localspec.decoding.interfaces.Target` over a KV cache."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.capacity = context.capacity
        self._hidden: tuple[int, ...] = ()
        self.progress: Callable[[int, int], None] | None = None
        """Called after each chunk of a prompt, as in `Context.extend`."""
        self.pictures: Sequence[Picture] = ()

    @property
    def why_not_draft(self) -> str | None:
        """Why this model gets no drafts; None if it does."""
        if not self._context.max_draft:
            return "--exact is on, and no pass over several tokens rounds like single ones here"
        if not self._context.restores:
            return None
        return (
            "the memory of this recurrent model cannot be truncated token by token, and llama.cpp "
            "keeps no snapshots of it"
        )

    def seen(self, prompt: Sequence[int]) -> Sequence[int]:
        return with_picture_ids(prompt, self.pictures)

    def reuse(self, prompt: Sequence[int]) -> int:
        """Keep the tokens that the cache shares with a prompt, except its last one; returns how
        many."""
        kept = min(self.cached_length(prompt), len(prompt) - 1)
        for picture in self.pictures:
            if picture.start < kept < picture.end:  # a part may need a single pass
                kept = picture.start
        self._context.truncate(kept)
        return len(self._context.tokens)

    def cached_length(self, prompt: Sequence[int]) -> int:
        """Length of the prefix of a prompt that is in the cache."""
        return shared_prefix(self._context.tokens, self.seen(prompt))

    def forward(self, request: PassRequest) -> PassResult:
        context, tree = self._context, request.tree
        before = context.native_seconds
        if request.hidden != self._hidden:
            context.request_hidden(request.hidden)
            self._hidden = request.hidden
        if request.hidden:
            context.collect_inputs()
        for picture in self.pictures:
            self._read(request.context, picture)
        pending = request.context[len(context.tokens) :]
        if tree.tokens:
            rows = context.branch(pending, tree)
        else:
            rows = context.extend(pending, 1, self.progress if len(pending) > 1 else None)
        seconds = context.native_seconds - before
        if not request.hidden:
            return PassResult(rows, seconds)
        return PassResult(rows, seconds, context.hidden(1 + len(tree)), context.take_inputs())

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        self._context.keep(tree, path)

    def rollback(self, context: Sequence[int]) -> None:
        self._context.discard_branches()
        self._context.truncate(shared_prefix(self._context.tokens, self.seen(context)))

    def _read(self, prompt: Sequence[int], picture: Picture) -> None:
        """Read an image and the tokens before it, unless cached."""
        held = len(self._context.tokens)
        if held <= picture.start:
            if held < picture.start:
                self._context.extend(prompt[held : picture.start], 0, self.progress)
            self._context.append_image(picture.part)


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, by bisection, as slices are compared in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
