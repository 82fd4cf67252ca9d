"""Which of those who wait share the next pass."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.scheduling.members import BID, DRAFT, TARGET, Lane, Request

CHUNK = 64
"""Tokens of prompts in a pass beside steps of other answers, where nobody says otherwise."""


class NextPass:
    """Chooses, and remembers what was chosen, so that prompts and steps take turns.

    Args:
        lanes, chunk, piece, mixed: as for `localspec.scheduling.rounds.Rounds`.

    Attributes:
        chunk: tokens of prompts beside steps, or of one prompt beside others, at most.
        piece: tokens of prompts in a pass without any step, at most.
        longest: tokens that a pass of the target can have.
        mixed: whether a pass may have both, steps and prompts.
    """

    def __init__(
        self, lanes: tuple[Lane | None, Lane], *, chunk: int, piece: int | None, mixed: bool
    ) -> None:
        self._lanes = lanes
        self.chunk, self.mixed = chunk, mixed
        self.longest = lanes[1].batch
        self.piece = min(self.longest, piece or self.longest)
        self._read_draft = False  # whether the latest pass was over a prompt, in the draft model
        self._read = [False, False]  # whether the latest one was over prompts, by lane

    def choose(self, pending: Sequence[Request]) -> tuple[int, list[Request]]:
        """The lane and the requests of the next pass."""
        drafting = [r for r in pending if r.lane == DRAFT]
        verifying = [r for r in pending if r.lane == TARGET]
        reading = bool(drafting) and all(r.long for r in drafting)
        bids = [r for r in pending if r.lane == BID]
        if bids and (not drafting or reading):
            return BID, bids
        # A long prompt in the draft model takes turns with the target's passes.
        if not drafting or (reading and verifying and self._read_draft):
            lane, asked = TARGET, verifying
        else:
            lane, asked = DRAFT, drafting
        self._read_draft = lane == DRAFT and reading
        return lane, self._fitting(lane, asked)

    def _fitting(self, lane: int, asked: list[Request]) -> list[Request]:
        """As many as one pass of the lane can have, steps before prompts."""
        where = self._lanes[lane]
        assert where is not None
        short = [r for r in asked if not r.long]
        long = [r for r in asked if r.long]
        most = self.chunk if short else max(self.chunk, self.piece)
        if not self.mixed and short and long:
            short, long = (short, []) if self._read[lane] else ([], long)
        self._read[lane] = not short
        tokens = rows = read = 0
        small = False
        chosen: list[Request] = []
        for request in [*short, *long]:
            assert request.part is not None
            size, outputs = request.tokens, request.part.outputs
            if chosen and (tokens + size > where.batch or rows + outputs > where.rows):
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
