"""`localspec run`: one prompt, one answer."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from localspec.cli import options as o
from localspec.cli.interrupts import on_interrupt
from localspec.cli.output import Console, OutputLost
from localspec.errors import Cancelled, UsageError

# The rest brings numpy and the engine with it, and `--help` wants to be quick.
if TYPE_CHECKING:
    from localspec.cli.formats import Format
    from localspec.cli.worker import Finished, Ready, Worker

EXAMPLES = """\
Examples:
  localspec run "Tell me a story about a fox."
  git diff | localspec run -n 200 --stats "Describe this change."
  localspec run "Invent a person." --json-schema @person.json --json
  localspec run -m model.gguf -d draft.gguf --temp 0 < prompt.txt"""


def run(
    context: typer.Context,
    prompt: o.Prompt = None,
    system: o.System = None,
    raw: o.Raw = False,
    max_tokens: o.MaxTokens = None,
    stop: o.Stop = None,
    grammar: o.GrammarText = None,
    json_schema: o.JsonSchema = None,
    model: o.Model = None,
    offline: o.Offline = None,
    ctx: o.Context = None,
    threads: o.Threads = None,
    gpu_layers: o.GpuLayers = None,
    flash_attention: o.FlashAttention = None,
    kv_type: o.KvType = None,
    mmap: o.Mmap = None,
    mlock: o.Mlock = None,
    rpc: o.Rpc = None,
    draft: o.Draft = None,
    draft_threads: o.DraftThreads = None,
    draft_gpu_layers: o.DraftGpuLayers = None,
    lighter_draft: o.LighterDraft = None,
    cross_vocabulary: o.CrossVocabulary = None,
    overlap: o.Overlap = None,
    drafter: o.Drafter = None,
    depth: o.Depth = None,
    width: o.Width = None,
    greedy_drafts: o.GreedyDrafts = None,
    min_confidence: o.MinConfidence = None,
    min_likelihood: o.MinLikelihood = None,
    rule: o.Rule = None,
    rule_threshold: o.RuleThreshold = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repeat_penalty: o.RepeatPenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    penalty_last_n: o.PenaltyLastN = None,
    logit_bias: o.LogitBias = None,
    seed: o.Seed = None,
    stats: o.Stats = False,
    json: o.Json = False,
    jsonl: o.Jsonl = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Answer one prompt.

    The answer goes to standard output as it comes, and ends with a newline;
    everything else goes to standard error. Ctrl+C stops the answer and keeps
    what there is; a second one leaves at once.
    """
    console: Console = context.obj
    console.configure(quiet=quiet, verbosity=verbose)
    if json and jsonl:
        raise UsageError("--json and --jsonl exclude each other. Leave out one of them.")
    if quiet and (stats or verbose):
        raise UsageError("--quiet excludes --stats and --verbose. Leave out one of them.")

    from localspec.cli import formats

    kind = formats.JsonObject if json else formats.JsonLines if jsonl else formats.Text
    form: Format = kind(console)
    try:
        from localspec.cli.request import read_request
        from localspec.cli.worker import Worker

        # The parameters above are there for typer; here they are wanted by name.
        worker = Worker(read_request(context.params), shows_progress=console.shows_progress)
        ready, finished = _follow(worker, form, console)
    except OutputLost:
        raise
    except KeyboardInterrupt:
        interrupted = Cancelled("Interrupted before the model was loaded.")
        _tell(form, interrupted)
        raise interrupted from None
    except Exception as error:
        _tell(form, error)
        raise
    return _report(console, ready, finished, stats=stats, figures=not (json or jsonl))


def _tell(form: Format, error: Exception) -> None:
    # Should its output be gone as well, the error itself is what matters.
    with suppress(OutputLost):
        form.failed(error)


def _follow(worker: Worker, form: Format, console: Console) -> tuple[Ready, Finished]:
    """Show what the worker brings, up to the end."""
    from localspec.cli.worker import Failed, Finished, Progress, Ready, Stopping

    ready: Ready | None = None
    answering = False
    with on_interrupt(worker.cancel):
        try:
            for event in worker.events():
                if isinstance(event, Progress):
                    console.progress(event.text)
                elif isinstance(event, Stopping):
                    # Behind a part of the answer it would take that part's line away with it.
                    if not answering:
                        console.progress("stopping; Ctrl+C again leaves at once", at_once=True)
                elif isinstance(event, Ready):
                    ready = event
                    for notice in event.notices:
                        console.notice(notice)
                    form.ready(event)
                elif isinstance(event, Finished):
                    form.finished(event.completion)
                    assert ready is not None
                    return ready, event
                elif isinstance(event, Failed):
                    raise event.error
                else:
                    answering = True
                    console.erase_progress()
                    form.chunk(event)
            raise AssertionError("the worker ended without a word")
        except BaseException:
            worker.cancel()
            raise
        finally:
            console.erase_progress()
            worker.join()


def _report(
    console: Console, ready: Ready, finished: Finished, *, stats: bool, figures: bool
) -> int:
    """What is said after the answer; returns the exit code."""
    from localspec.cli import report

    completion = finished.completion
    interrupted = completion.finish_reason == "cancelled"
    for notice in completion.stats.notices:
        console.notice(notice)
    if stats:
        lines = report.table(
            completion.stats,
            model=ready.model_name,
            draft=ready.draft_name,
            finish=completion.finish_reason,
        )
        console.say(lines, dim=True)
    elif figures and not console.quiet:
        line = report.figures(completion.stats, draft=ready.draft_name, interrupted=interrupted)
        console.say(line, dim=True)
    return Cancelled.exit_code if interrupted else 0
