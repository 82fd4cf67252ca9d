"""Translate the `llama-server` flags of llama.cpp's tests to those of `localspec serve`.

    python -m tools.llama_server.shim --hf-repo ggml-org/test-model-stories260K --port 8080 …

Model flags select those of `tools.llama_server.models`, and the process becomes `localspec serve`.
Flags without an effect that a client could see are dropped.
"""

import argparse
import os
import sys
from pathlib import Path

from tools.llama_server.models import STAND_INS, TARGET, TEMPLATES, model_file

FOLDER = "LLAMA_SERVER_MODELS"
"""The environment variable with the folder of the models."""

# fmt: off
_VALUES = (
    "--host", "--port", "--temp", "--seed", "--model", "--hf-repo", "--hf-file", "--model-draft",
    "--alias", "--n-predict", "--api-key", "--slot-save-path", "--chat-template",
    "--chat-template-file", "--cors-origins", "--pooling", "--spec-draft-n-max",
    "--spec-draft-n-min", "--spec-synth-rates", "--reasoning", "-fa", "--tags", "--media-path",
    "--tools",
)
_FLAGS = (
    "--slots", "--no-slots", "--no-ui", "--context-shift", "--kv-unified", "--verbose",
    "--embedding", "--backend_sampling", "--ui-mcp-proxy",
)
_DROPPED = ("--offline", "--cont-batching", "--metrics", "--jinja", "--no-jinja", "--swa-full")
_DROPPED_VALUES = ("--batch-size", "--ubatch-size", "--threads", "--n-gpu-layers", "--spec-type")
# fmt: on


def command(arguments: list[str]) -> list[str]:
    """The equivalent command line of `localspec serve`.

    Raises SystemExit, with the reason, if there is none.
    """
    args = _parser().parse_args(arguments)
    found = ["--host", args.host, "--port", args.port, "--temp", args.temp, "--seed", args.seed]
    found += ["-t", "1", "-m", str(_model(args)), *_drafting(args)]
    slots = max(1, args.parallel or 1)
    found += ["--parallel", str(slots)]
    if args.ctx_size:
        found += ["-c", str(args.ctx_size if args.kv_unified else args.ctx_size // slots)]
    if args.fa is not None:
        found += ["--flash-attention", args.fa]
    for flag, value in (
        ("--alias", args.alias),
        ("--tags", args.tags),
        ("--max-tokens", None if args.n_predict == "-1" else args.n_predict),
        ("--api-key", args.api_key),
        ("--slot-save-path", args.slot_save_path),
        ("--cors", args.cors_origins),
    ):
        if value is not None:
            found += [flag, value]
    found += [flag for flag, on in (("--no-slots", args.no_slots), ("--no-ui", args.no_ui)) if on]
    if args.context_shift:
        found.append("--context-shift")
    if args.reasoning == "off":
        found.append("--no-think")
    return [*found, "-v"]


def _model(args: argparse.Namespace) -> Path:
    name = STAND_INS.get(args.hf_file or args.hf_repo or "", TARGET if _no_model(args) else "")
    if not name:
        raise SystemExit(f"shim: there is no stand-in for {args.hf_repo} {args.hf_file or ''}")
    template = args.chat_template
    if template is not None:
        template = TEMPLATES.get(template, template)
    if args.chat_template_file is not None:
        template = Path(args.chat_template_file).read_text(encoding="utf-8")
    return model_file(name, Path(os.environ[FOLDER]), template=template)


def _no_model(args: argparse.Namespace) -> bool:
    """Whether llama-server would be a router."""
    return args.hf_repo is None and args.hf_file is None and args.model is None


def _drafting(args: argparse.Namespace) -> list[str]:
    """Flags for drafting: llama-server drafts only on request, and accepts what it samples."""
    if args.spec_synth_rates is not None:
        raise SystemExit("shim: drafts accepted at random are only for llama.cpp's own tests")
    if args.model_draft is None:
        return ["-d", "none", "--drafter", "none", "--rule", "match"]
    draft = ["-d", args.model_draft, "--drafter", "model", "--rule", "match"]
    return draft if args.spec_draft_n_max is None else [*draft, "--depth", args.spec_draft_n_max]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in (*_VALUES, *_DROPPED_VALUES):
        parser.add_argument(flag)
    for flag in ("--parallel", "--ctx-size"):
        parser.add_argument(flag, type=int)
    for flag in (*_FLAGS, *_DROPPED):
        parser.add_argument(flag, action="store_true")
    return parser


if __name__ == "__main__":
    serve = [sys.executable, "-m", "localspec", "serve", *command(sys.argv[1:])]
    os.execv(sys.executable, serve)
