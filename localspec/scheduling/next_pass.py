"""Which waiting requests share the next pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from localspec.llama.shared_context import SharedContext
from localspec.scheduling.task import Request, Wait

CHUNK = 64  # default tokens of prompts in a pass beside steps


class NextPass:
    """Chooses. Prompts and steps take turns.

    Attributes:
        chunk: most tokens of one prompt beside other prompts.
        piece: most tokens of prompts in a pass.
        longest: tokens that a pass of the target can have.
    """

    def __init__(
        self, caches: Mapping[Wait, SharedContext], *, chunk: int, piece: int | None
    ) -> None:
        self._caches, self.chunk = caches, chunk
        self.longest = caches[Wait.TARGET].batch
        self.piece = min(self.longest, piece or self.longest)
        self._read_draft = False  # whether the latest pass was over a prompt, in the draft model
        self._read: set[Wait] = set()  # where the latest pass was over prompts

    def choose(self, pending: Sequence[Request]) -> tuple[Wait, list[Request]]:
        """What is made next, and for whom."""
        drafting = [r for r in pending if r.wait is Wait.DRAFT]
        verifying = [r for r in pending if r.wait is Wait.TARGET]
        reading = bool(drafting) and all(r.long for r in drafting)
        bids = [r for r in pending if r.wait is Wait.BID]
        if bids and (not drafting or reading):
            return Wait.BID, bids
        # A long prompt in the draft model takes turns with the target's passes.
        if not drafting or (reading and verifying and self._read_draft):
            wait, asked = Wait.TARGET, verifying
        else:
            wait, asked = Wait.DRAFT, drafting
        self._read_draft = wait is Wait.DRAFT and reading
        return wait, self._fitting(wait, asked)

    def _fitting(self, wait: Wait, asked: Sequence[Request]) -> list[Request]:
        """As many as one pass can have, steps before prompts."""
        cache = self._caches[wait]
        short = [r for r in asked if not r.long]
        long = [r for r in asked if r.long]
        most = self.chunk if short else max(self.chunk, self.piece)
        if short and long:
            short, long = (short, []) if wait in self._read else ([], long)
        (self._read.discard if short else self._read.add)(wait)
        tokens = rows = read = 0
        small = False
        chosen: list[Request] = []
        for request in [*short, *long]:
            assert request.part is not None
            size, outputs = request.tokens, request.part.outputs
            if chosen and (tokens + size > cache.batch or rows + outputs > cache.rows):
                continue
            if request.long:
                # Passes of 64 tokens and more take other kernels, which round otherwise: what is
                # shorter alone is shorter beside other prompts too, and reads as it does alone.
                small = small or size < CHUNK
                if read and read + size > (CHUNK if small else most):
                    continue
                read += size
            chosen.append(request)
            tokens, rows = tokens + size, rows + outputs
        return chosen
