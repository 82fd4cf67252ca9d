"""Records answers for `localspec distill` on a GPU, thousands at a time, with PyTorch alone.

    python -m tools.torch_recording plan MODEL PLAN [QUESTIONS.jsonl …]     # here
    python -m tools.torch_recording record MODEL PLAN --tokens 20e6         # where the GPU is
    localspec distill -m MODEL --as eagle3 --vocabulary 8192

Most prompts are the model's own: what it says after the beginning of a user's turn (Magpie, Xu et
al. 2024, section 2.1), or after the first words of one. QUESTIONS have a `prompt` a line besides.
The model is one of llama's architecture, computed in TF32 and its attention in bfloat16.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.distill import folders, network, weights
from localspec.distill.prompts import read_prompts
from localspec.distill.recording import RecordedQuestion
from localspec.distill.torch_room import device, torch_package
from localspec.distill.trace import TOP_K, Trace, TraceHeader, TraceRecord

SEATS, LONGEST, QUESTION = 2048, 256, 224
"""Answers at once, and tokens of an answer and of a question at most."""
TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
"""Of answers, in turns."""
OPENED = 0.6
"""Share of the model's own prompts that begin with first words."""
FIRST_WORDS = """\
Write|Write a story about|Write a poem about|Write an email to|Write a Python function that
Write a short essay about|Write a list of|Explain|Explain how|Explain why|What is|What are the
What would happen if|How do I|How does|How many|How can I|Why|Why do|Who|When did|Where|Can you
Could you help me|Translate|Translate the following sentence into English:|Summarize
Summarize the following text:|Read the following passage and answer the question.|Given the
Based on the following|Extract|List|Give me|Describe|Compare|Imagine you are|Pretend|Act as
Solve|Calculate|Find|A train|If|Implement|Fix the bug in this code:|def|Rewrite|Correct|Classify
Create|Design|Plan|Suggest|Recommend|I am|I want to|I need|My|In|The|Please|Tell me about|Is it
Should I|Do you|Which|Complete the following|Answer the following question:|True or false:
Question:|Convert|Generate|Edit the following paragraph:|Discuss|Analyze|Define|Name"""

Ids = npt.NDArray[np.int64]
Tensor = Any


@dataclass(frozen=True, slots=True)
class Plan:
    """Tokens around a user's turn, and prompts.

    Attributes:
        begin, middle: before the user's words, and between them and the answer.
        ends: tokens that end a turn.
        openings: first words of a user; questions: whole prompts.
    """

    header: TraceHeader
    begin: list[int]
    middle: list[int]
    ends: list[int]
    openings: list[list[int]]
    questions: list[list[int]]


def plan(model_path: Path, out: Path, files: Sequence[Path]) -> None:
    from localspec.llama.model import Model
    from localspec.llama.options import ModelOptions
    from localspec.prompting.prompt import PromptBuilder

    with Model(model_path, ModelOptions(context=1024)) as model:
        builder, vocabulary = PromptBuilder(model, 1024), model.vocabulary

        def asked(text: str) -> list[int]:
            return list(builder.rendered(builder.text([{"role": "user", "content": text}])))

        mark = vocabulary.tokenize("Q", special=False, add_bos=False)
        around = asked("Q")
        place = max(n for n, token in enumerate(around) if [token] == list(mark))
        begin, middle = around[:place], around[place + 1 :]
        words = [w.strip() for line in FIRST_WORDS.splitlines() for w in line.split("|")]
        openings = [list(vocabulary.tokenize(w, special=False, add_bos=False)) for w in words]
        questions = [asked(str(prompt)) for file in files for prompt in read_prompts(file)]
        made = Plan(
            folders.header_of(model_path, vocabulary),
            begin,
            middle,
            [token for token in range(vocabulary.size) if vocabulary.ends(token)],
            openings,
            [q for q in questions if len(q) <= QUESTION + len(begin) + len(middle)],
        )
    out.write_text(json.dumps(asdict(made)), encoding="utf-8")
    print(f"{out}: {len(made.questions)} questions, {len(openings)} openings")


@dataclass(slots=True)
class Answered:
    """Tokens [n], and of each the likeliest ids [n, k], log p [n, k] and what is left [n]."""

    tokens: Ids
    ids: Ids
    log_p: npt.NDArray[np.float32]
    rest: npt.NDArray[np.float32]


class Writer:
    """The model on a device; writes after many texts at once."""

    def __init__(self, path: Path, wanted: str, ends: Sequence[int], seed: int) -> None:
        self._torch = torch = torch_package()
        torch.set_float32_matmul_precision("high")
        self._device = device(wanted)
        self.shape, found = weights.read(path)
        self._weights = {n: torch.from_numpy(v).to(self._device) for n, v in found.items()}
        self._ends = torch.tensor(ends, device=self._device)
        self._random = torch.Generator(self._device)
        self._random.manual_seed(seed)

    def after(
        self, texts: Sequence[Sequence[int]], longest: int, temperatures: Sequence[float]
    ) -> Iterator[Answered]:
        """What the model says after each, up to the end of its turn, which is the last token."""
        torch, shape, seats = self._torch, self.shape, len(texts)
        lengths = torch.tensor([len(text) for text in texts], device=self._device)
        whole, first = max(map(len, texts)) + longest, min(map(len, texts))
        tokens = torch.zeros(seats, whole, dtype=torch.int64)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text)
        tokens = tokens.to(self._device)
        turns = network.rotations(shape, whole, self._device)
        heat = torch.tensor(temperatures, device=self._device)[:, None]
        size = (shape.layers, 2, seats, shape.kv_heads, whole, shape.head_width)
        cache = torch.empty(size, dtype=torch.bfloat16, device=self._device)
        kept = (seats, longest + 1, TOP_K)  # one more for rows that are not asked for
        ids = torch.zeros(kept, dtype=torch.int32, device=self._device)
        log_p = torch.zeros(kept, dtype=torch.float16, device=self._device)
        rest = torch.zeros(kept[:2], dtype=torch.float16, device=self._device)
        over = torch.full((seats,), whole, device=self._device)
        rows = torch.arange(seats, device=self._device)
        done = 0
        for end in range(first, whole):
            logits = self._pass(tokens[:, done:end], cache, done, turns)
            done = end
            best = torch.log_softmax(logits, -1)
            found, which = best.topk(TOP_K, -1)
            writing = (end >= lengths) & (end < over) & (end < lengths + longest)
            place = torch.where(writing, end - lengths, longest)
            ids[rows, place], log_p[rows, place] = which.int(), found.half()
            rest[rows, place] = (1.0 - found.exp().sum(-1)).clamp_min(0.0).half()
            noise = torch.empty_like(best).exponential_(generator=self._random).log()
            drawn = torch.where(heat > 0, best / heat.clamp_min(0.01) - noise, best).argmax(-1)
            tokens[:, end] = torch.where(writing, drawn, tokens[:, end])
            over = torch.where(writing & torch.isin(drawn, self._ends), end + 1, over)
            if end % 16 == 0 and bool((over <= end).all()):
                break
        ends = torch.minimum(over, lengths + longest).clamp_max(done + 1).tolist()
        values = [each.cpu().numpy() for each in (tokens, ids, log_p, rest)]
        for row, text in enumerate(texts):
            said = values[0][row, len(text) : ends[row]]
            n = len(said)
            yield Answered(
                said,
                values[1][row, :n].astype(np.int64),
                values[2][row, :n].astype(np.float32),
                values[3][row, :n].astype(np.float32),
            )

    def _pass(
        self, tokens: Tensor, cache: Tensor, done: int, turns: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Logits behind the last of some tokens, [texts, vocabulary]."""
        torch, shape, given = self._torch, self.shape, self._weights
        functional = torch.nn.functional
        count = tokens.shape[1]
        here = tuple(each[done : done + count] for each in turns)
        x = functional.embedding(tokens, given["token_embd.weight"])
        for layer in range(shape.layers):
            at, held = f"blk.{layer}", cache[layer]
            normed = network.norm(x, given[f"{at}.attn_norm.weight"], shape.epsilon)
            queries, keys, values = network.projected(given, shape, normed, here, at)
            share = shape.heads // shape.kv_heads
            held[0, :, :, done : done + count] = keys[:, ::share].bfloat16()
            held[1, :, :, done : done + count] = values[:, ::share].bfloat16()
            if done:
                grouped = queries.bfloat16().view(
                    -1, shape.kv_heads, share * count, shape.head_width
                )
                scores = grouped @ held[0, :, :, : done + count].mT
                shares = (scores.float() * shape.head_width**-0.5).softmax(-1).bfloat16()
                mixed = (shares @ held[1, :, :, : done + count]).float()
                mixed = mixed.view(-1, shape.heads, count, shape.head_width)
            else:
                mixed = functional.scaled_dot_product_attention(
                    *(each.bfloat16() for each in (queries, keys, values)), is_causal=True
                ).float()
            flat = mixed.transpose(1, 2).flatten(2)
            x = x + functional.linear(flat, given[f"{at}.attn_output.weight"])
            normed = network.norm(x, given[f"{at}.ffn_norm.weight"], shape.epsilon)
            x = x + network.feed_forward(given, normed, at)
        last = network.norm(x[:, -1], given["output_norm.weight"], shape.epsilon)
        return last @ network.output_matrix(given, shape).T


def record(model_path: Path, plan_path: Path, tokens: int, wanted: str, seed: int) -> None:
    facts = json.loads(plan_path.read_text(encoding="utf-8"))
    made = Plan(**(facts | {"header": TraceHeader(**facts["header"])}))
    writer, random = Writer(model_path, wanted, made.ends, seed), np.random.default_rng(seed)
    path = folders.folder_of(model_path, made.header.identity) / folders.TRACE
    began = perf_counter()
    with Trace(path, made.header) as trace:
        waiting = [RecordedQuestion(tuple(one)) for one in made.questions]
        recorded = 0
        while recorded < tokens:
            if len(waiting) < SEATS:
                waiting += own_prompts(writer, made, random)
                random.shuffle(waiting)
            batch = sorted(waiting[:SEATS], key=lambda one: len(one.tokens))
            del waiting[:SEATS]
            heat = [TEMPERATURES[n % len(TEMPERATURES)] for n in range(len(batch))]
            asked = [one.tokens for one in batch]
            for one, answer in zip(batch, writer.after(asked, LONGEST, heat), strict=True):
                trace.append(_record(one, answer))
                recorded += len(answer.tokens)
            print(f"{recorded:,} tokens, {perf_counter() - began:.0f} s", flush=True)


def own_prompts(
    writer: Writer, made: Plan, random: np.random.Generator
) -> Iterator[RecordedQuestion]:
    """What the model says in a user's place, where it comes to an end."""
    first = [
        made.openings[int(random.integers(len(made.openings)))] if random.random() < OPENED else []
        for _ in range(SEATS)
    ]
    texts = [[*made.begin, *words] for words in first]
    for words, said in zip(first, writer.after(texts, QUESTION, [1.0] * SEATS), strict=True):
        if said.tokens[-1] in made.ends and len(words) + len(said.tokens) > 4:
            yield RecordedQuestion((*made.begin, *words, *said.tokens[:-1].tolist(), *made.middle))


def _record(question: RecordedQuestion, answer: Answered) -> TraceRecord:
    prompt = np.array(question.tokens, np.int64)
    likely = answer.ids, answer.log_p, answer.rest
    return TraceRecord(question.key, prompt, answer.tokens, *likely, question.held_back)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    planning = steps.add_parser("plan")
    planning.add_argument("model", type=Path)
    planning.add_argument("plan", type=Path)
    planning.add_argument("questions", type=Path, nargs="*")
    recording = steps.add_parser("record")
    recording.add_argument("model", type=Path)
    recording.add_argument("plan", type=Path)
    recording.add_argument("--tokens", type=float, default=20e6)
    recording.add_argument("--device", default="auto")
    recording.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    if said.step == "plan":
        plan(said.model, said.plan, said.questions)
    else:
        record(said.model, said.plan, int(said.tokens), said.device, said.seed)


if __name__ == "__main__":
    main()
