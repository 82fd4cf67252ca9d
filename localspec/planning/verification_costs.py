"""What verifying so many tokens costs at one place of a text, slots that are cheaper filled."""

from __future__ import annotations

from localspec.planning.pair_profile import Knowledge


class Costs:
    """Seconds of a verifying pass over n tokens, n = 1 … most + 1, localspec's own work included.

    Attributes:
        least: by n, the least that a pass over n or more tokens costs.
        size: by n, the number of tokens that costs so little; n itself unless a larger pass is
            cheaper, whose free slots are then filled.
        ceiling: the speed-up if drafts of a usual length cost nothing but planning them, and were
            always right.
    """

    USUAL = 8
    """Tokens of a pass; more are accepted only where text is copied."""
    PLANNING = 400e-6
    """Seconds of a step that is planned and drafted, on top of a plain one: some 150 µs of work,
    during which the native threads fall asleep, and take as long to be woken."""

    __slots__ = ("ceiling", "least", "size")

    def __init__(self, knowledge: Knowledge, context: int, most: int) -> None:
        n = most + 1
        rows = knowledge.target.row(n, context)
        for i in range(1, n + 1):
            rows[i] += knowledge.step_overhead + (i - 1) * knowledge.row_overhead
        self.size = list(range(n + 1))
        for i in range(n - 1, 0, -1):
            if rows[i + 1] <= rows[i]:
                rows[i], self.size[i] = rows[i + 1], self.size[i + 1]
        self.least = rows
        dearer = [rows[i] + self.PLANNING for i in range(2, min(n, self.USUAL) + 1)]
        self.ceiling = max((i * rows[1] / cost for i, cost in enumerate(dearer, 2)), default=1.0)
