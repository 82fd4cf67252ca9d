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
        str,
        "-m --model",
        "REF",
        "Train a draft for this model. Default as for run. (LOCALSPEC_MODEL)",
    ),
}
RECORDING = {
    "history": _recording(
        bool, "--history", "", "Use the questions of 'localspec chat' as prompts."
    ),
    "text": _recording(
        list[Path],
        "--text",
        "PATH",
        "Let the target read these files and folders instead of answering. Repeatable.",
    ),
    "raw": _recording(
        bool, "--raw", "", "Continue the prompts as they are, without a chat template."
    ),
    "answers": _recording(int, "--answers", "N", "Answer each prompt N times. Default 1."),
    "max_tokens": _recording(
        int, "-n --max-tokens", "N", "Generate at most N tokens per answer. Default 256."
    ),
    "tokens": _recording(int, "--tokens", "N", "Stop recording at N tokens."),
    "record_only": _recording(bool, "--record-only", "", "Record, but do not train yet."),
}
TRAINING = {
    "kind": _training(
        str,
        "--as",
        "KIND",
        f"Train this kind: {', '.join(KINDS)}; the last two are heads. Default draft.",
    ),
    "begun_from": _training(str, "--from", "REF", "Tune this draft instead of training a new one."),
    "shape": _training(
        str,
        "--shape",
        "WxLxF",
        "Set width x layers x feed-forward of a new draft. Default: the best for this machine.",
    ),
    "vocabulary": _training(
        int, "--vocabulary", "N", "Keep only the N tokens that the target uses most. Default: all."
    ),
    "epochs": _training(int, "--epochs", "N", "Train on each answer N times. Default 4."),
    "rounds": _training(
        int,
        "--rounds",
        "N",
        "Before each of the last N epochs, train also on text that the draft generates and "
        "the target corrects. Default 0.",
    ),
    "batch": _training(int, "--batch", "N", "Train on N tokens per step. Default 2048."),
    "rate": _training(
        float,
        "--rate",
        "X",
        "Set the highest learning rate. Default 0.0005 to tune a draft, 0.0015 for a new one.",
    ),
    "seed": _training(
        int, "--seed", "N", "Set the seed of order, weights and sampling. Default 0."
    ),
    "threads": _training(
        int,
        "-t --threads",
        "N",
        "Use N threads. With one, the same recording gives the same file, byte for byte. "
        "Default 1.",
    ),
    "device": _training(str, "--device", "NAME", "Train on auto, cpu, cuda or mps. Default auto."),
    "quant": _training(
        str, "--quant", "TYPE", f"Store the matrices as {', '.join(QUANTS)}. Default Q8_0."
    ),
    "out": _training(
        Path, "-o --out", "FILE", "Write the draft to this file. Default: where '-d auto' finds it."
    ),
}
RECORDED = {
    "listing": _recorded(bool, "--list", "", "Show the recordings and where they are."),
    "forget": _recorded(
        list[str],
        "--forget",
        "NAME",
        "Delete a recording by its name from --list; 'history' deletes all that were made in "
        "chats. Repeatable.",
    ),
}
