"""Options of `localspec distill`."""

from __future__ import annotations

from pathlib import Path

from localspec.cli.options import in_panel

KINDS = ("draft", "eagle3", "medusa")
QUANTS = ("Q8_0", "F16")

_recording = in_panel("Recording")
_training = in_panel("Training")
_recorded = in_panel("What was recorded")

TARGET = {
    "model": _recording(
        str,
        "-m",
        "--model",
        metavar="REF",
        help="The target. Default the embedded model. (LOCALSPEC_MODEL)",
    ),
}
RECORDING = {
    "history": _recording(bool, "--history", help="Ask what was asked in 'localspec chat'."),
    "text": _recording(
        list[Path],
        "--text",
        metavar="PATH",
        help="Files and folders that the target is to read, not answer. Repeatable.",
    ),
    "raw": _recording(
        bool, "--raw", help="Prompts are text to go on from, without a chat template."
    ),
    "answers": _recording(int, "--answers", metavar="N", help="Answers to each prompt. Default 1."),
    "max_tokens": _recording(
        int, "-n", "--max-tokens", metavar="N", help="Tokens of each answer. Default 256."
    ),
    "tokens": _recording(
        int, "--tokens", metavar="N", help="Record no more once the trace has so many tokens."
    ),
    "record_only": _recording(bool, "--record-only", help="Record, and train another time."),
}
TRAINING = {
    "kind": _training(
        str,
        "--as",
        metavar="KIND",
        help=f"What to make: {', '.join(KINDS)}; the last two are heads. Default draft.",
    ),
    "begun_from": _training(
        str, "--from", metavar="REF", help="Tune this draft instead of making a new one."
    ),
    "shape": _training(
        str,
        "--shape",
        metavar="WxLxF",
        help="Width x layers x feed-forward of a new one. Default what promises most here.",
    ),
    "vocabulary": _training(
        int,
        "--vocabulary",
        metavar="N",
        help="Tokens of a new one: those of the target that it says most often. Default all.",
    ),
    "epochs": _training(
        int, "--epochs", metavar="N", help="How often each answer is seen. Default 4."
    ),
    "rounds": _training(
        int,
        "--rounds",
        metavar="N",
        help="Before each of the last N epochs the draft goes on by itself where the target had "
        "begun, the target reads that, and half of the epoch is on it. Default 0.",
    ),
    "batch": _training(int, "--batch", metavar="N", help="Tokens of a step. Default 2048."),
    "rate": _training(
        float,
        "--rate",
        metavar="X",
        help="The highest learning rate. Default 0.0005 to tune a draft, 0.0015 for a new one.",
    ),
    "seed": _training(
        int, "--seed", metavar="N", help="Of order, weights and what is drawn. Default 0."
    ),
    "threads": _training(
        int,
        "-t",
        "--threads",
        metavar="N",
        help="Threads; with one, the same trace and options give the same file, byte for byte. "
        "Default 1.",
    ),
    "device": _training(
        str, "--device", metavar="NAME", help="auto, cpu, cuda or mps. Default auto."
    ),
    "quant": _training(
        str,
        "--quant",
        metavar="TYPE",
        help=f"Of the file's matrices: {', '.join(QUANTS)}. Default Q8_0.",
    ),
    "out": _training(
        Path,
        "-o",
        "--out",
        metavar="FILE",
        help="Write the draft there; else it lies where '-d auto' finds it.",
    ),
}
RECORDED = {
    "listing": _recorded(bool, "--list", help="Show what was recorded, and where it lies."),
    "forget": _recorded(
        list[str],
        "--forget",
        metavar="NAME",
        help="Remove what was recorded under a name that --list shows; 'history' is all that was "
        "recorded while chatting. Repeatable.",
    ),
}
