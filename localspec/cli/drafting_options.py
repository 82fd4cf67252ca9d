"""Options for drafting and accepting drafts."""

from __future__ import annotations

from localspec import Drafting
from localspec.cli.options import default, in_panel
from localspec.drafters.options import OVERLAPS

_option = in_panel("Drafting")

DRAFTING = {
    "drafter": _option(
        str,
        "--drafter",
        "NAME",
        "Choose who proposes tokens: auto (what pays), none (plain decoding), ngram "
        f"(repeated text), model (the draft model). {default(Drafting, 'drafter')} "
        "(LOCALSPEC_DRAFTER)",
    ),
    "depth": _option(
        int, "--depth", "N", "Draft N tokens per pass. Default: what pays.", advanced=True
    ),
    "width": _option(
        int,
        "--width",
        "N",
        "Draft N candidates at each position; above 1, drafts are trees. "
        f"{default(Drafting, 'width')}",
        advanced=True,
    ),
    "greedy_drafts": _option(
        bool,
        "--greedy-drafts",
        "",
        "Draft the most probable tokens even if the answer is sampled.",
        advanced=True,
    ),
    "min_confidence": _option(
        float,
        "--min-confidence",
        "P",
        "Stop a draft if the draft model's best token is less probable than P. "
        f"{default(Drafting, 'min_confidence')}",
        advanced=True,
    ),
    "min_likelihood": _option(
        float,
        "--min-likelihood",
        "P",
        "Stop a draft if all its tokens together are less probable than P. "
        f"{default(Drafting, 'min_likelihood')}",
        advanced=True,
    ),
    "rule": _option(
        str,
        "--rule",
        "NAME",
        "Set the acceptance rule. Lossless: auto, token, block, match. Lossy, which can "
        f"change the answer: typical, top-k, top-p, threshold. {default(Drafting, 'rule')}",
        advanced=True,
    ),
    "rule_threshold": _option(
        float, "--rule-threshold", "X", "Set the threshold of a lossy rule.", advanced=True
    ),
    "overlap": _option(
        str,
        "--overlap",
        "WHEN",
        "Draft while the target verifies, if the two have separate devices or cores: "
        f"{', '.join(OVERLAPS)}. {default(Drafting, 'overlap')}",
        advanced=True,
    ),
}
