"""`llama-server`'s flags as `localspec serve` has them, as far as llama.cpp's tests use them.

    python -m tools.llama_server.shim --hf-repo ggml-org/test-model-stories260K --port 8080 …

What it says of models is answered with those of `tools.llama_server.models`, and the process
becomes `localspec serve`. Flags that change nothing that a client could see are dropped.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tools.llama_server.models import STAND_INS, TARGET, TEMPLATES, model_file

FOLDER = "LLAMA_SERVER_MODELS"
"""The variable that says where models are made."""

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
    """The command line of `localspec serve` that means the same.

    Raises SystemExit: it has no meaning here; says why.
    """
    said = _parser().parse_args(arguments)
    found = ["--host", said.host, "--port", said.port, "--temp", said.temp, "--seed", said.seed]
    found += ["-t", "1", "-m", str(_model(said)), *_drafting(said)]
    slots = max(1, said.parallel or 1)
    found += ["--parallel", str(slots)]
    if said.ctx_size:
        found += ["-c", str(said.ctx_size if said.kv_unified else said.ctx_size // slots)]
    if said.fa is not None:
        found += ["--flash-attention", said.fa]
    for flag, value in (
        ("--alias", said.alias),
        ("--tags", said.tags),
        ("--max-tokens", None if said.n_predict == "-1" else said.n_predict),
        ("--api-key", said.api_key),
        ("--slot-save-path", said.slot_save_path),
        ("--cors", said.cors_origins),
    ):
        if value is not None:
            found += [flag, value]
    found += [flag for flag, on in (("--no-slots", said.no_slots), ("--no-ui", said.no_ui)) if on]
    if said.context_shift:
        found.append("--context-shift")
    if said.reasoning == "off":
        found.append("--no-think")
    return [*found, "-v"]


def _model(said: argparse.Namespace) -> Path:
    name = STAND_INS.get(said.hf_file or said.hf_repo or "", TARGET if _no_model(said) else "")
    if not name:
        raise SystemExit(f"shim: nothing stands in for {said.hf_repo} {said.hf_file or ''}")
    template = said.chat_template
    if template is not None:
        template = TEMPLATES.get(template, template)
    if said.chat_template_file is not None:
        template = Path(said.chat_template_file).read_text(encoding="utf-8")
    return model_file(name, Path(os.environ[FOLDER]), template=template)


def _no_model(said: argparse.Namespace) -> bool:
    """Whether llama-server would be a router."""
    return said.hf_repo is None and said.hf_file is None and said.model is None


def _drafting(said: argparse.Namespace) -> list[str]:
    """llama-server drafts only where it is told to."""
    if said.spec_synth_rates is not None:
        raise SystemExit("shim: drafts that are accepted by lot are for llama.cpp's own tests")
    if said.model_draft is None:
        return ["-d", "none", "--drafter", "none"]
    draft = ["-d", said.model_draft, "--drafter", "model"]
    return draft if said.spec_draft_n_max is None else [*draft, "--depth", said.spec_draft_n_max]


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
