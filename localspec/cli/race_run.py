"""Run both lanes of a race alternately."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec import Engine, SamplingParams
from localspec.cli.answer import Prompt, all_notices, prompt_of, stream_of
from localspec.cli.race_view import RaceScreen
from localspec.cli.request import AnswerRequest
from localspec.cli.work import Work
from localspec.decoding.sampling import Sampler
from localspec.errors import UsageError
from localspec.loading.second_engine import load_second_engine
from localspec.race import RaceLane, RaceOutcome, first_difference, take_turns

_WARM_UP_TOKENS = 4


def run_race(
    request: AnswerRequest,
    scale: str | None,
    further: Sequence[str],
    work: Work,
    screen: RaceScreen,
) -> tuple[list[RaceOutcome], dict[str, Any]]:
    """Run a race over all questions; each lane continues its own conversation and its own clock.
    `scale`: use this pair of `localspec.bench.scale` instead of the request's models. Returns an
    outcome per question (at least one), the models' names, and the seconds of calibration."""
    opening, options = request.opening, request.opening.options
    if scale is not None:
        opening = opening.scaled(scale, work.report)
    with work.load(opening) as engine, load_second_engine(engine, options) as beside:
        for lane_engine in (beside, engine):
            lane_engine.take_turns()
        prompt, notices = prompt_of(request, engine)
        if further and isinstance(prompt, str):
            raise UsageError(
                "--then continues a conversation, but this prompt is plain text: the model "
                "has no chat template, or --raw skips it. Leave out --then."
            )
        provable = _provable(request, engine, work)
        measured = _warm_up(beside, work) + _warm_up(engine, work)
        prompts = [prompt, prompt]
        outcomes: list[RaceOutcome] = []
        for question in (None, *further):
            if question is not None:
                if work.stopped:
                    break
                screen.ask(question)
                before = (outcomes[-1].plain, outcomes[-1].localspec)
                prompts = [
                    _next_prompt(prompt, lane.stream.text, question)
                    for prompt, lane in zip(prompts, before, strict=True)
                ]
            streams = [
                stream_of(request, *each) for each in zip((beside, engine), prompts, strict=True)
            ]
            if question is None:
                notices = [*beside.notices, *notices]
                work.console.notices(all_notices(request, engine, streams[1].stats, notices))
                screen.begin(_title(request, engine))
            lanes = [RaceLane(stream) for stream in streams]
            with work.cancelling(*streams):
                for lap in take_turns(lanes):
                    work.writing = screen.live
                    screen.show(lap)
            alike = all(outcome.equal for outcome in outcomes)
            outcomes.append(_compare_lanes(request, (beside, engine), lanes, alike))
        if provable:
            outcomes = _prove(engine, outcomes, work)
        measured += sum(each.localspec.stream.stats.calibration_seconds for each in outcomes)
        draft = None if engine.draft is None else engine.draft.name
        names = {"model": engine.model.name, "draft": draft}
        return outcomes, {**names, "calibration_seconds": measured}


def _title(request: AnswerRequest, engine: Engine) -> str:
    sampling, draft = request.opening.sampling, engine.draft
    parts = [engine.model.name, *([] if draft is None else [f"draft {draft.name}"])]
    parts.append("greedy" if sampling.greedy else f"temperature {sampling.temperature:g}")
    return " · ".join(parts)


def _next_prompt(prompt: Prompt, answer: str, question: str) -> Prompt:
    assert not isinstance(prompt, str), "a bare text has no further questions"
    reply = {"role": "assistant", "content": answer}
    return [*prompt, reply, {"role": "user", "content": question}]


def _provable(request: AnswerRequest, engine: Engine, work: Work) -> bool:
    """Whether the output depends only on logits, and these are batch-invariant."""
    sampler = Sampler(request.opening.sampling, engine.model.vocabulary.size)
    if not request.free or not sampler.greedy or sampler.adjusts:
        return False
    work.report("checking whether passes of all sizes give the same bits")
    return engine.batch_invariant


def _prove(engine: Engine, outcomes: Sequence[RaceOutcome], work: Work) -> list[RaceOutcome]:
    """Add a proof to each answer that is entirely in the context."""
    engine.clear()
    proved = []
    for outcome in outcomes:
        stream, tokens = outcome.localspec.stream, outcome.localspec.token_ids
        text = list(stream.context)
        prompt = text[: len(text) - len(tokens)]
        whole = text[len(prompt) :] == tokens and len(text) <= engine.context_length
        if stream.stats.lossless and tokens and prompt and whole:
            work.console.progress("reading localspec's answer once more, for the proof")
            wrong = engine.first_wrong(prompt, tokens)
            outcome = replace(outcome, proved=True, wrong=wrong)
        proved.append(outcome)
    return proved


def _warm_up(engine: Engine, work: Work) -> float:
    """Fault in pages, allocate and calibrate; returns the seconds of calibration."""
    work.report("warming up, and measuring pass costs that are not known yet")
    greedy = SamplingParams(temperature=0.0)
    stream = engine.stream("Hello", max_tokens=_WARM_UP_TOKENS, sampling=greedy)
    profile = engine.profile
    usual = profile.answers, profile.said
    with work.cancelling(stream):
        seconds = stream.completion().stats.calibration_seconds
    profile.answers, profile.said = usual  # do not record this short answer's length
    return seconds


def _compare_lanes(
    request: AnswerRequest, engines: tuple[Engine, Engine], lanes: Sequence[RaceLane], alike: bool
) -> RaceOutcome:
    (beside, engine), (plain, ours) = engines, lanes
    stock = engine.model.kernels.in_use and not beside.model.kernels.in_use
    halfway = len(plain.stream.context) - len(plain.token_ids) // 2
    pace, speed = engine.plain_seconds(halfway), plain.stream.stats.tokens_per_second
    if stock and pace and speed:
        engine.profile.stock = 1.0 / (speed * pace)
    return RaceOutcome(
        plain=plain,
        localspec=ours,
        greedy=request.opening.sampling.greedy and ours.stream.stats.lossless,
        difference=first_difference(plain.token_ids, ours.token_ids, beside.token_bytes)
        if alike
        else None,
        alike=alike,
        stock=stock,
    )
