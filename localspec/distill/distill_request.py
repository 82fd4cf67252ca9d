"""The parameters of `localspec distill`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.distill.weights import Q8_0
from localspec.prompting.prompt import Prompt

DRAFT, EAGLE3, MEDUSA = "draft", "eagle3", "medusa"
RATES = {DRAFT: 1.5e-3, EAGLE3: 5e-4, MEDUSA: 1e-3}
TUNED = 5e-4
"""Learning rates by kind, and for a draft that is fine-tuned."""

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRequest:
    """Parameters of recording and training; other fields as in `training_run.TrainingPlan`.

    Attributes:
        prompts, texts: prompts to answer; files and folders to read.
        raw: use text prompts without the chat template.
        answers: per prompt, of up to `max_tokens`; `tokens`: maximum tokens to record.
        begun_from: a draft to fine-tune.
        shape, vocabulary: otherwise, of the new draft: "192x3x512", or None to choose it; the
            number of frequent tokens, or None for all.
        quant: of the matrices, "Q8_0", "Q4_0" or "F16".
        out: None for the folder that `-d auto` searches.
    """

    target: Path
    kind: str = DRAFT
    prompts: Sequence[Prompt] = ()
    texts: Sequence[Path] = ()
    raw: bool = False
    answers: int = 1
    max_tokens: int = 256
    tokens: int | None = None
    begun_from: Path | None = None
    shape: str | None = None
    vocabulary: int | None = None
    epochs: int = 4
    batch: int = 2048
    rate: float | None = None
    seed: int = 0
    threads: int = 1
    device: str = "auto"
    rounds: int = 0
    quant: str = Q8_0
    out: Path | None = None

    @property
    def learning_rate(self) -> float:
        if self.rate is not None:
            return self.rate
        return TUNED if self.begun_from is not None else RATES[self.kind]
