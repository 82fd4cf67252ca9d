"""`localspec show`: one model, its memory, and its drafts here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.tables import facts, table, unbreakable
from localspec.errors import UsageError
from localspec.text import gigabytes, parameter_count, printable

if TYPE_CHECKING:
    from localspec.gguf.file import GGUFFile
    from localspec.llama.options import ModelOptions
    from localspec.pairing.auto import DraftCandidate

EXAMPLES = """\
  localspec show demo
  localspec show user/repo:Q8_0 --ctx 32768 --kv-type q8_0
  localspec show model.gguf --template
  localspec show model.gguf --json"""

_LICENCES = ("general.license.name", "general.license", "general.license.link")

SHOW = o.parameters("""
    reference: REF
        A model on this machine: a path, user/repo[:quant], a name from 'localspec models', or
        'demo'.
    -c --ctx N
        Compute the memory for this context length; 0 uses the model's own, at most 8192. Default
        0.
    --kv-type TYPE
        Compute the memory for this element type of the KV cache. Default f16.
    --template
        Print only the chat template.
""")


@o.takes(SHOW, o.only(o.COMMON, "json", "verbose"))
def show(console: Console, params: o.Params) -> None:
    """Reads only the files' metadata."""
    from localspec.gguf.description import why_not
    from localspec.gguf.reader import read_gguf
    from localspec.hub import resolution
    from localspec.hub.local import local_models
    from localspec.llama.options import ModelOptions
    from localspec.pairing.auto import candidates, measured_speed_ups
    from localspec.pairing.memory import PairUse

    ctx, kv_type = params["ctx"] or 0, params["kv_type"] or "f16"
    # Raises for invalid values.
    options = ModelOptions(context=ctx, kv_type_k=kv_type, kv_type_v=kv_type)
    if params["template"] and console.json:
        raise UsageError("--template and --json cannot be combined. Leave out one of them.")
    reference = params["reference"]
    meant = resolution.find(reference)
    console.notices(meant.notices)
    file = read_gguf(meant.path)
    if params["template"]:
        if text := file.text("tokenizer.chat_template"):
            # Console.answer drops control characters on a terminal, but not in a pipe.
            console.answer(text if text.endswith("\n") else text + "\n")
        else:
            console.notice("The model has no chat template.")
        return
    found = []
    if (problem := why_not(file)) is None:
        measured = measured_speed_ups(meant.path, options)
        found = candidates(file, local_models(), PairUse(options=options), measured)
    record = _record(file, resolution.name_of(reference, meant.path), options, found)
    console.result(record, _facts(record) + ("" if problem else _drafts(found)))


def _record(
    file: GGUFFile, name: str, options: ModelOptions, found: list[DraftCandidate]
) -> dict[str, Any]:
    from localspec.gguf.description import facts_of
    from localspec.gguf.dimensions import default_context
    from localspec.gguf.vocabularies import VocabularyFacts
    from localspec.pairing.memory import place
    from localspec.pairing.rules import active_parameters

    vocabulary = VocabularyFacts(file)
    template = file.text("tokenizer.chat_template")
    need = place(file, options, 0).host
    licences = [file.text(key) for key in _LICENCES]
    return {
        "name": printable(name),
        "path": str(file.path),
        "parts": len(file.parts),
        **asdict(facts_of(file)),
        "active_parameters": active_parameters(file),
        "vocabulary": {
            "model": vocabulary.model,
            "pre_tokenizer": vocabulary.pre,
            "tokens": vocabulary.size,
            "bos": vocabulary.beginning(),
            "eos": vocabulary.end(),
            "eot": vocabulary.turn_end(),
        },
        "chat_template": template,
        "licence": printable(next((text for text in licences if text), "") or "") or None,
        "memory": {
            "context": default_context(file, options),
            "kv_type": options.kv_type_k,
            **asdict(need),
            "total": need.total,
        },
        "drafts": [_draft(candidate) for candidate in found],
    }


def _draft(candidate: DraftCandidate) -> dict[str, Any]:
    forecast = candidate.forecast
    return {
        "reference": candidate.reference,
        "name": candidate.model.name,
        "path": candidate.model.path,
        "usable": candidate.usable,
        "why_not": candidate.why_not,
        "warnings": candidate.warnings,
        "expected_speed_up": None if forecast is None else round(forecast.speed_up, 2),
        "measured": forecast is not None and forecast.measured,
        "expected_cost": None if forecast is None else round(forecast.cost, 4),
    }


def _facts(record: dict[str, Any]) -> str:
    active = record["active_parameters"]
    parameters = parameter_count(record["parameters"])
    if active < 0.7 * record["parameters"]:
        parameters += f", {parameter_count(active)} of them for each token"
    words, template = record["vocabulary"], record["chat_template"]
    size, path = gigabytes(record["size"]), unbreakable(printable(record["path"], 4096))
    parts = f" in {record['parts']} parts" if record["parts"] > 1 else ""
    rows = [
        ("model", record["name"]),
        ("file", f"{path} ({size}{parts})"),
        ("architecture", record["architecture"]),
        ("parameters", parameters),
        ("quantization", record["quantization"] or "none"),
        ("context", f"{n:,} tokens in training" if (n := record["trained_context"]) else "unknown"),
        ("vocabulary", f"{words['tokens']:,} tokens, {words['model']} / {words['pre_tokenizer']}"),
        ("chat template", f"{len(template)} characters (--template)" if template else "none"),
        ("licence", record["licence"] or "not stated"),
        ("memory", _memory(record["memory"])),
    ]
    if record["problem"]:
        rows.insert(1, ("problem", record["problem"]))
    return facts(rows)


def _memory(memory: dict[str, Any]) -> str:
    text = (
        f"{gigabytes(memory['total'])} with {memory['context']:,} tokens of {memory['kv_type']} "
        f"cache: weights {gigabytes(memory['weights'])}, cache {gigabytes(memory['kv'])}, "
        f"passes and vocabulary {gigabytes(memory['compute'])}"
    )
    if memory["reclaimable"]:
        text += f"\n{gigabytes(memory['reclaimable'])} of it is the file, mapped and reclaimable"
    return text


def _drafts(found: list[DraftCandidate]) -> str:
    usable = [candidate for candidate in found if candidate.usable]
    others = [c for c in found if not c.usable and c.model.problem is None]
    text = "\n"
    if usable:
        rows = [
            {
                "DRAFTS HERE": candidate.model.name,
                "PARAMETERS": parameter_count(candidate.model.parameters),
                "SPEED-UP": f"{'measured' if f.measured else 'expected'} {f.speed_up:.2f}×",
                "REFERENCE": printable(candidate.reference, 4096),
            }
            for candidate in usable
            if (f := candidate.forecast)
        ]
        text += table(rows, right=("PARAMETERS", "SPEED-UP"), spare=("PARAMETERS",))
    else:
        text += "No model here can draft for it; 'localspec models' lists pairs to download.\n"
    warnings = [(c.model.name, warning) for c in usable for warning in _warnings(c)]
    misfits = [(c.model.name, c.why_not or "") for c in others]
    for name, what, told in (("DRAFT", "WARNING", warnings), ("DOES NOT FIT", "WHY", misfits)):
        if told:
            text += "\n" + table([{name: one, what: why} for one, why in told], sentences=(what,))
    return text


def _warnings(candidate: DraftCandidate) -> list[str]:
    if candidate.forecast is None or candidate.forecast.pays:
        return candidate.warnings
    why = "No gain expected; '-d auto' takes it only if 'localspec doctor' measures one"
    if candidate.forecast.measured:
        why = "'localspec doctor' measured no gain, so '-d auto' does not take it"
    return [why, *candidate.warnings]
