"""`localspec distill`: train a draft from the model's own answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from localspec.cli import crashes
from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.tables import table
from localspec.errors import Cancelled, UsageError
from localspec.paths import expanded
from localspec.text import gigabytes, printable

if TYPE_CHECKING:
    from localspec.distill.distill_request import DistillRequest
    from localspec.distill.distillation import DistillResult
    from localspec.distill.folders import TargetEntry
    from localspec.distill.training import TrainingProgress
    from localspec.prompting.prompt import Prompt

EXAMPLES = """\
  localspec distill -m model.gguf prompts.txt
  localspec distill -m model.gguf --history --text ~/notes
  localspec distill -m model.gguf --from draft.gguf prompts.jsonl
  localspec distill -m model.gguf --epochs 8        # on what was recorded
  localspec distill --list
  localspec distill --forget model-1a2b3c4d
  localspec distill --forget history                # recordings of chats"""

_KINDS = ("draft", "eagle3", "medusa")
_TYPES = ("Q8_0", "Q4_0", "F16")


DISTILL = o.parameters(f"""
    prompts: [PROMPTS]...
        Files of prompts: one per line, or JSON lines with "prompt", "turns" or "messages".
Recording:
    -m --model REF
        Train a draft for this model. Default as for run. (LOCALSPEC_MODEL)
    --history
        Use the questions of 'localspec chat' as prompts.
    --text PATH
        Let the target read these files and folders instead of answering. Repeatable.
    --raw
        Continue the prompts as they are, without a chat template.
    --answers N≥1
        Answer each prompt N times. Default 1.
    -n --max-tokens N≥1
        Generate at most N tokens per answer. Default 256.
    --tokens N≥1
        Stop at N recorded tokens in all.
    --record-only
        Record, but do not train yet.
Training:
    kind: --as KIND
        Train this kind: {", ".join(_KINDS)}; the last two are heads. Default draft.
    begun_from: --from REF
        Tune this draft instead of training a new one.
    --shape WxLxF
        Set width x layers x feed-forward of a new draft. Default: the best for this machine.
    --vocabulary N≥1
        Keep only the N tokens that the target uses most. Default: all.
    --epochs N≥1
        Train on each answer N times. Default 4.
    --rounds N
        Before each of the last N epochs, train also on text that the draft generates and the target
        corrects. Default 0.
    --batch N≥1
        Train on N tokens per step. Default 2048.
    --rate X
        Set the highest learning rate. Default 0.0005 to tune a draft, 0.0015 for a new one.
    --seed N≥0
        Set the seed of order, weights and sampling. Default 0.
    -t --threads N≥1
        Use N threads. With one, the same recording gives the same file, byte for byte. Default 1.
    --device NAME
        Train on auto, cpu, cuda or mps. Default auto.
    --quant TYPE
        Store the matrices as {", ".join(_TYPES)}. Default Q8_0; Medusa heads are F16.
    out: -o --output FILE
        Write the draft to this file. Default: where '-d auto' finds it.
Recordings:
    listing: --list
        Show the recordings and where they are.
    --forget NAME
        Delete a recording by its name from --list; 'history' deletes all that were made in chats.
        Repeatable.
""")

HISTORY = "history"
"""Name for all recordings of chats."""


@o.takes(DISTILL, o.COMMON)
def distill(console: Console, params: o.Params) -> None:
    """The target answers the prompts; its answers and token probabilities are
    stored in localspec's data folder until you delete them with --forget. A
    small model is then trained on them, and '-d auto' finds it. You can press
    Ctrl+C at any time: the same command continues.
    """
    params = {name: value for name, value in params.items() if value is not None}
    listing, forget = bool(params.get("listing")), params.get("forget")
    if listing and forget:
        raise UsageError("Give --list or --forget, not both.")
    if listing:
        _list(console)
    elif forget:
        _forget(console, forget)
    else:
        request = _request(console, params)
        try:
            _run(console, request, bool(params.get("record_only")))
        except KeyboardInterrupt:
            raise Cancelled("Interrupted. The same command continues.") from None
        finally:
            console.erase_progress()


def _request(console: Console, params: Mapping[str, Any]) -> DistillRequest:
    from localspec.cli.request import find_model
    from localspec.distill.distill_request import DistillRequest
    from localspec.distill.network import DEVICES
    from localspec.paths import EMBEDDED_DRAFT

    kind = params.get("kind", "draft")
    if kind not in _KINDS:
        raise UsageError(f"There is no kind of draft '{kind}'. Choose one of {', '.join(_KINDS)}.")
    types = _TYPES[-1:] if kind == "medusa" else _TYPES
    quant = str(params.get("quant", types[0])).upper()
    head, tuned, rounds = kind != "draft", "begun_from" in params, params.get("rounds")
    for refused, why in (
        (
            head and rounds,
            f"A head ({kind}) is trained on its own states anyway. Leave out --rounds.",
        ),
        (
            quant not in types,
            f"This draft cannot be written as '{quant}'. Choose one of {', '.join(types)}.",
        ),
        (
            params.get("device", "auto") not in DEVICES,
            f"There is no device '{params.get('device')}'. Choose one of {', '.join(DEVICES)}.",
        ),
        (
            tuned and "shape" in params,
            "--shape is for a new draft, and --from tunes an old one. Give one of them.",
        ),
        (
            head and {"begun_from", "shape"} & params.keys(),
            f"A head ({kind}) has its target's shape. Leave out --shape and --from.",
        ),
        (
            "vocabulary" in params and (tuned or rounds),
            "--vocabulary is for a new draft without --rounds. Leave out --from and --rounds.",
        ),
    ):
        if refused:
            raise UsageError(why)
    names = {field.name for field in fields(DistillRequest)} - {"prompts"}
    given = {name: value for name, value in params.items() if name in names}
    given |= {"kind": kind, "quant": quant}
    if tuned:
        given["begun_from"] = find_model(params["begun_from"], console, embedded=EMBEDDED_DRAFT)[0]
    request = DistillRequest(
        target=find_model(params.get("model"), console)[0],
        prompts=_prompts(params["prompts"], bool(params.get("history"))),
        texts=params.get("text", ()),
        **given,
    )
    if not 0 < request.learning_rate <= 1:
        raise UsageError(f"--rate is {request.rate:g}. Give more than 0, and at most 1.")
    if not 0 <= request.rounds <= request.epochs:
        raise UsageError(
            f"--rounds is {request.rounds}. Give 0 or more, and no more than there are --epochs "
            f"({request.epochs})."
        )
    return request


def _run(console: Console, request: DistillRequest, record_only: bool) -> None:
    from localspec.distill import distillation
    from localspec.distill.network import device
    from localspec.distill.training import lower_priority
    from localspec.llama import library

    distillation.require_trainable(request)
    if not record_only:
        device(request.device)
    lower_priority()
    crashes.watch()
    library.on_abort(console.exit_with)
    if request.prompts or request.texts:
        console.progress("opening the target", at_once=True)
        count, tokens = distillation.record(
            request, lambda n: console.progress(f"recorded tokens: {n:,}"), console.notice
        )
        console.erase_progress()
        if record_only:
            record = {"answers": count, "tokens": tokens}
            console.done(record, f"Recorded tokens: {tokens:,}, answers: {count:,}.")
            return
    elif record_only:
        raise UsageError("There is nothing to record. Give prompts, --history, or --text.")
    reported: list[int] = []

    def report(progress: TrainingProgress) -> None:
        point = progress.point
        if point.step not in reported and not console.shows_progress:
            reported.append(point.step)
            if not console.json:
                console.notice(_progress_text(progress))
        console.progress(_progress_text(progress))

    made = distillation.distill(request, report, console.notice)
    console.erase_progress()
    console.done(
        {
            "path": str(made.path),
            "parameters": made.kind.parameters,
            "new": made.new,
            "curve": [asdict(point) for point in made.curve],
        },
        _summary(made),
    )


def _progress_text(progress: TrainingProgress) -> str:
    words = [
        f"step {progress.step:,} of {progress.steps:,}",
        f"{progress.left / 60:.0f} min left",
        f"same token {progress.point.agreement:.3f}",
        f"accepted {progress.point.acceptance:.3f}",
    ]
    if progress.loss is not None:
        words.append(f"loss {progress.loss:.3f}")  # last: a narrow terminal cuts it
    return " · ".join(words)


def _summary(made: DistillResult) -> str:
    first, last = made.curve[0], made.curve[-1]
    before = "" if first is last else f" (before: {first.agreement:.3f} and {first.acceptance:.3f})"
    depths = ", ".join(f"{rate:.3f}" for rate in last.depths)
    ahead = f" ({depths}, the nearest token first)" if depths else ""
    done = "Made" if made.new else "Nothing is left to train:"
    return (
        f"{done} {made.path}\n{made.kind.description}. In held-back answers, it predicts "
        f"{last.agreement:.3f} of the target's tokens{ahead}, and the acceptance rate of sampled "
        f"drafts is {last.acceptance:.3f}{before}. Training took {last.seconds / 60:.0f} min."
    )


def _prompts(files: Sequence[str], history: bool) -> list[Prompt]:
    from localspec.distill.recording import read_prompts

    found = [prompt for path in files for prompt in read_prompts(expanded(path))]
    if history:
        from localspec.cli.learn import conversations

        for conversation in conversations():
            questions = [
                conversation.for_model(upto=message.id)
                for message in conversation.messages.values()
                if message.role == "user" and message.content
            ]
            # Drafts are trained without images.
            found += [q for q in questions if all(isinstance(m["content"], str) for m in q)]
    return found


def _list(console: Console) -> None:
    from localspec.distill import folders

    found = list(folders.recorded_targets())
    rows = [
        {
            "NAME": printable(target.name),
            "ANSWERS": f"{target.answers:,}",
            "TOKENS": f"{target.tokens:,}",
            "HELD BACK": f"{target.held_back:,}",
            "FROM CHATS": f"{target.chats:,}",
            "SIZE": gigabytes(target.size),
            "FOLDER": printable(str(target.folder), 4096),
        }
        for target in found
    ]
    shown = table(rows, right=("ANSWERS", "TOKENS", "HELD BACK", "FROM CHATS", "SIZE"))
    nothing = (
        "Nothing was recorded. 'localspec distill PROMPTS' records a model's answers, and so does "
        "the chat after /record on."
    )
    console.result({"recorded": [_record(target) for target in found]}, shown, nothing)
    for target in () if console.json else found:
        if target.problem is not None:
            console.say(f"localspec: {target.problem}")
        for path in target.drafts:
            console.notice(f"{target.name}: {printable(str(path), 4096)} was trained on it.")


def _record(target: TargetEntry) -> dict[str, Any]:
    found = asdict(target)
    found["bytes"], found["from_chats"] = found.pop("size"), found.pop("chats")
    return found | {"folder": str(target.folder), "drafts": [str(path) for path in target.drafts]}


def _forget(console: Console, names: Sequence[str]) -> None:
    from localspec.distill import chats, folders

    deleted = folders.forget([name for name in names if name != HISTORY])
    answers = chats.forget() if HISTORY in names else 0
    lines = []
    if HISTORY in names:
        lines.append(f"Forgotten answers recorded in chats: {answers:,}.")
    if deleted:
        lines.append(f"Forgotten: {', '.join(target.name for target in deleted)}.")
    record = {"forgotten": [target.name for target in deleted], "from_chats": answers}
    console.done(record, "\n".join(lines))
    for path in () if console.json else (path for target in deleted for path in target.drafts):
        console.notice(f"{path} was trained on it, and is kept. Delete it if you do not need it.")
