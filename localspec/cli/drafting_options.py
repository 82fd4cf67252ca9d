"""Options that say how to draft and how drafts are accepted."""

from __future__ import annotations

from localspec import Drafting
from localspec.cli.options import default, in_panel
from localspec.drafters.options import OVERLAPS
from localspec.drafters.registry import REGISTRY

_option = in_panel("Drafting")

DRAFTING = {
    "drafter": _option(
        str,
        "--drafter",
        metavar="NAME",
        help=f"Who proposes tokens: auto, none, {', '.join(REGISTRY)}. "
        f"{default(Drafting, 'drafter')} (LOCALSPEC_DRAFTER)",
    ),
    "depth": _option(
        int, "--depth", metavar="N", help="Tokens drafted per pass. Default what pays."
    ),
    "width": _option(
        int,
        "--width",
        metavar="N",
        help="Candidates at each place; above 1 the drafts are trees. "
        f"{default(Drafting, 'width')}",
    ),
    "greedy_drafts": _option(
        bool,
        "--greedy-drafts",
        help="Draft the most probable tokens even where the answer is sampled.",
    ),
    "min_confidence": _option(
        float,
        "--min-confidence",
        metavar="P",
        help="The draft model stops where its best token is less probable. "
        f"{default(Drafting, 'min_confidence')}",
    ),
    "min_likelihood": _option(
        float,
        "--min-likelihood",
        metavar="P",
        help="The draft model stops where all its tokens together are less probable. "
        f"{default(Drafting, 'min_likelihood')}",
    ),
    "rule": _option(
        str,
        "--rule",
        metavar="NAME",
        help="Acceptance rule. Lossless: auto, token, block, match. Lossy, which can change the "
        f"answer: typical, top-k, top-p, threshold. {default(Drafting, 'rule')}",
    ),
    "rule_threshold": _option(
        float,
        "--rule-threshold",
        metavar="X",
        help="Threshold of a lossy rule, instead of its own.",
    ),
    "overlap": _option(
        str,
        "--overlap",
        metavar="WHEN",
        help="Let the draft model go on while the model verifies, where they have devices or "
        f"cores of their own: {', '.join(OVERLAPS)}. {default(Drafting, 'overlap')}",
    ),
}
