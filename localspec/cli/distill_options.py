"""Options of `localspec distill`."""

from __future__ import annotations

from pathlib import Path

from localspec.cli.options import in_panel

KINDS = ("draft", "eagle3", "medusa")
QUANTS = ("Q8_0", "F16")

_recording = in_panel("Recording")
_training = in_panel("Training")
_recorded = in_panel("Recordings")

TARGET = {
    "model": _recording(
        "-m --model REF", "Train a draft for this model. Default as for run. (LOCALSPEC_MODEL)"
    )
}
RECORDING = {
    "history": _recording("--history", "Use the questions of 'localspec chat' as prompts."),
    "text": _recording(
        "--text PATH",
        "Let the target read these files and folders instead of answering. Repeatable.",
        list[Path],
    ),
    "raw": _recording("--raw", "Continue the prompts as they are, without a chat template."),
    "answers": _recording("--answers N", "Answer each prompt N times. Default 1.", int),
    "max_tokens": _recording(
        "-n --max-tokens N", "Generate at most N tokens per answer. Default 256.", int
    ),
    "tokens": _recording("--tokens N", "Stop recording at N tokens.", int),
    "record_only": _recording("--record-only", "Record, but do not train yet."),
}
TRAINING = {
    "kind": _training(
        "--as KIND", f"Train this kind: {', '.join(KINDS)}; the last two are heads. Default draft."
    ),
    "begun_from": _training("--from REF", "Tune this draft instead of training a new one."),
    "shape": _training(
        "--shape WxLxF",
        "Set width x layers x feed-forward of a new draft. Default: the best for this machine.",
    ),
    "epochs": _training("--epochs N", "Train on each answer N times. Default 4.", int),
    "batch": _training("--batch N", "Train on N tokens per step. Default 2048.", int),
    "rate": _training(
        "--rate X",
        "Set the highest learning rate. Default 0.0005 to tune a draft, 0.0015 for a new one.",
        float,
    ),
    "seed": _training("--seed N", "Set the seed of order, weights and sampling. Default 0.", int),
    "threads": _training(
        "-t --threads N",
        "Use N threads. With one, the same recording gives the same file, byte for byte. Default "
        "1.",
        int,
    ),
    "device": _training("--device NAME", "Train on auto, cpu, cuda or mps. Default auto."),
    "quant": _training("--quant TYPE", f"Store the matrices as {', '.join(QUANTS)}. Default Q8_0."),
    "out": _training(
        "-o --out FILE", "Write the draft to this file. Default: where '-d auto' finds it.", Path
    ),
}
RECORDED = {
    "listing": _recorded("--list", "Show the recordings and where they are."),
    "forget": _recorded(
        "--forget NAME",
        "Delete a recording by its name from --list; 'history' deletes all that were made in "
        "chats. Repeatable.",
        list[str],
    ),
}
