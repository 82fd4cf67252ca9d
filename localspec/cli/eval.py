"""`localspec eval`: test questions with and without drafts."""

from contextlib import suppress
from dataclasses import replace

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.shared_options import DRAFT_MODEL, DRAFTING, GREEDY, MODEL, SAMPLING
from localspec.cli.work import working
from localspec.errors import Cancelled, UsageError

EXAMPLES = """\
  localspec eval gsm8k --file gsm8k.jsonl -m smollm2 --limit 20
  localspec eval mmlu --file mmlu.jsonl -m model.gguf -d draft.gguf --exact
  localspec eval humaneval --file humaneval.jsonl --temp 0.8 --beside typical"""

QUESTIONS = o.parameters("""
    suite: SUITE
        humaneval, gsm8k, mmlu or truthfulqa.
Questions:
    --file FILE
        Read the questions from this file: JSON lines, as the suite is published. Required.
    --limit N≥1
        Ask N questions, spread over the file. Default: all.
    --beside RULE
        Also score a lossy acceptance rule: typical, top-k, top-p, threshold. Repeatable.
""")


@o.takes(
    QUESTIONS,
    o.without(MODEL, "rpc"),
    DRAFT_MODEL,
    o.without(DRAFTING, "rule", "rule_threshold"),
    {**GREEDY, **o.only(SAMPLING, "seed")},
    o.COMMON,
)
def evaluate(console: Console, params: o.Params) -> int:
    """Greedy by default: then answers differ only at near-ties, and those are
    listed. HumanEval runs generated programs in a child process with limits.
    The exit code is 0 if all differences are within rounding, else 1. Ctrl+C
    keeps the results so far.
    """
    suite = params["suite"]
    with working(console, "Interrupted before the first question.") as work:
        from localspec.cli.request import read_opening
        from localspec.decoding.rules import LOSSY
        from localspec.quality import programs, suite_run
        from localspec.quality.items import load_items
        from localspec.quality.suite_run import WayScore
        from localspec.verify.subject import PLAIN, Subject

        items = load_items(suite, params["file"], params["limit"])
        opening = read_opening(params)
        ways = {"plain": WayScore(PLAIN), "localspec": WayScore(opening.drafting)}
        for rule in params["beside"] or ():
            if rule not in LOSSY:
                raise UsageError(f"--beside takes a lossy rule: {', '.join(LOSSY)}.")
            ways[rule] = WayScore(replace(opening.drafting, rule=rule))
        if opening.options.exact and params["beside"]:
            raise UsageError("--exact excludes --beside: lossy rules are not exact. Leave out one.")
        if suite == "humaneval" and not programs.without_network():
            console.notice("The model's programs can reach the network: 'unshare' fails here.")
        seed = 1 if opening.sampling.seed is None else opening.sampling.seed
        sampling = replace(opening.sampling, seed=seed)
        outcome = suite_run.SuiteOutcome(ways)
        with (
            work.load(opening) as engine,
            suppress(KeyboardInterrupt),
        ):  # the result has the finished items
            suite_run.run_suite(Subject(engine, work.report), items, sampling, outcome)
    found = outcome.as_dict()
    console.result(found | {"suite": suite}, suite_run.outcome_text(suite, found))
    if not outcome.complete:
        raise Cancelled("Interrupted; the figures cover the results so far.")
    return 1 if outcome.faults else 0
