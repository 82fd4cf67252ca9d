"""Options that say what to answer, and how tokens are chosen."""

from __future__ import annotations

from localspec import SamplingParams
from localspec.cli.options import default, in_panel

_answer = in_panel("Prompt and answer")
_sampling = in_panel("Sampling")

ANSWER = {
    "system": _answer(str, "--system", metavar="TEXT", help="System message, before the prompt."),
    "max_tokens": _answer(
        int,
        "-n",
        "--max-tokens",
        metavar="N",
        help="Longest answer. Default 2048 tokens; in a chat, up to the end of the context.",
    ),
    "stop": _answer(
        list[str], "--stop", metavar="TEXT", help="End the answer before this text. Repeatable."
    ),
    "grammar": _answer(
        str,
        "--grammar",
        metavar="GBNF|@FILE",
        help="Grammar that the answer has to match. A value without '::=' is the path of a file, "
        "with or without the @.",
    ),
    "json_schema": _answer(
        str,
        "--json-schema",
        metavar="JSON|@FILE",
        help="JSON schema that the answer has to match. A value that does not begin with '{' is "
        "the path of a file, with or without the @.",
    ),
    "raw": _answer(bool, "--raw", help="Continue the prompt as it is, without the chat template."),
}


SAMPLING = {
    "temperature": _sampling(
        float,
        "--temp",
        "--temperature",
        metavar="X",
        help=f"0 is greedy. {default(SamplingParams, 'temperature')} (LOCALSPEC_TEMPERATURE)",
    ),
    "top_k": _sampling(
        int,
        "--top-k",
        metavar="K",
        help=f"Keep the K most probable tokens, 0 for all. {default(SamplingParams, 'top_k')}",
    ),
    "top_p": _sampling(
        float,
        "--top-p",
        metavar="P",
        help="Keep the fewest tokens with this probability together, 1 for all. "
        f"{default(SamplingParams, 'top_p')}",
    ),
    "min_p": _sampling(
        float,
        "--min-p",
        metavar="P",
        help="Keep tokens at least this probable relative to the best one, 0 for all. "
        f"{default(SamplingParams, 'min_p')}",
    ),
    "repeat_penalty": _sampling(
        float,
        "--repeat-penalty",
        metavar="X",
        help="Make recent tokens less likely by this factor, 1 for off. "
        f"{default(SamplingParams, 'repeat_penalty')}",
    ),
    "frequency_penalty": _sampling(
        float,
        "--frequency-penalty",
        metavar="X",
        help="Taken off a logit for each recent occurrence. "
        f"{default(SamplingParams, 'frequency_penalty')}",
    ),
    "presence_penalty": _sampling(
        float,
        "--presence-penalty",
        metavar="X",
        help="Taken off a logit that occurred recently. "
        f"{default(SamplingParams, 'presence_penalty')}",
    ),
    "penalty_last_n": _sampling(
        int,
        "--penalty-last-n",
        metavar="N",
        help=f"How many tokens are recent, -1 for all. {default(SamplingParams, 'penalty_last_n')}",
    ),
    "logit_bias": _sampling(
        list[str],
        "--logit-bias",
        metavar="TOKEN_ID=BIAS",
        help="Added to the logit of a token; -inf bans it. Repeatable.",
    ),
    "seed": _sampling(
        int,
        "--seed",
        metavar="N",
        help="With --exact, the same seed gives the same answer. With --rule match, too, if passes "
        "round alike. Otherwise drafts and threads have to be the same as well (--drafter, "
        "--depth, -t). Default a new one, which --stats shows.",
    ),
}
