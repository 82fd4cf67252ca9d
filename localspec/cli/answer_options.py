"""Options for the prompt, the answer and sampling."""

from __future__ import annotations

from localspec import SamplingParams
from localspec.cli.options import default, in_panel

_answer = in_panel("Prompt and answer")
_sampling = in_panel("Sampling")

ANSWER = {
    "system": _answer(str, "--system", "TEXT", "Set the system message."),
    "max_tokens": _answer(
        int,
        "-n --max-tokens",
        "N",
        "Generate at most N tokens. Default: 2048; in a chat, until the context is full.",
    ),
    "stop": _answer(
        list[str], "--stop", "TEXT", "End the answer before this text. Repeatable.", advanced=True
    ),
    "grammar": _answer(
        str,
        "--grammar",
        "TEXT|@FILE",
        "Make the answer match a grammar, in GBNF or Lark. A value without a rule in it is a "
        "file, with or without the @.",
        advanced=True,
    ),
    "json_schema": _answer(
        str,
        "--json-schema",
        "JSON|@FILE",
        "Make the answer match a JSON schema. A value that does not start with '{' is a file, "
        "with or without the @.",
    ),
    "regex": _answer(
        str, "--regex", "REGEX", "Make the answer match a regular expression.", advanced=True
    ),
    "raw": _answer(
        bool,
        "--raw",
        "",
        "Continue the prompt as it is, without a chat template. Special tokens in it count.",
    ),
}


SAMPLING = {
    "temperature": _sampling(
        float,
        "--temp --temperature",
        "X",
        "Set the temperature; 0 is greedy. "
        f"{default(SamplingParams, 'temperature')} (LOCALSPEC_TEMPERATURE)",
    ),
    "top_k": _sampling(
        int,
        "--top-k",
        "K",
        f"Keep the K most probable tokens; 0 keeps all. {default(SamplingParams, 'top_k')}",
        advanced=True,
    ),
    "top_p": _sampling(
        float,
        "--top-p",
        "P",
        "Keep the fewest tokens whose probabilities add up to P; 1 keeps all. "
        f"{default(SamplingParams, 'top_p')}",
        advanced=True,
    ),
    "min_p": _sampling(
        float,
        "--min-p",
        "P",
        "Keep tokens with at least P times the probability of the best one; 0 keeps all. "
        f"{default(SamplingParams, 'min_p')}",
        advanced=True,
    ),
    "repeat_penalty": _sampling(
        float,
        "--repeat-penalty",
        "X",
        "Make recent tokens less likely by this factor; 1 turns it off. "
        f"{default(SamplingParams, 'repeat_penalty')}",
        advanced=True,
    ),
    "frequency_penalty": _sampling(
        float,
        "--frequency-penalty",
        "X",
        "Subtract X from a logit for each recent occurrence. "
        f"{default(SamplingParams, 'frequency_penalty')}",
        advanced=True,
    ),
    "presence_penalty": _sampling(
        float,
        "--presence-penalty",
        "X",
        "Subtract X from the logit of each token that occurred recently. "
        f"{default(SamplingParams, 'presence_penalty')}",
        advanced=True,
    ),
    "penalty_last_n": _sampling(
        int,
        "--penalty-last-n",
        "N",
        "Count the last N tokens as recent; -1 counts all. "
        f"{default(SamplingParams, 'penalty_last_n')}",
        advanced=True,
    ),
    "logit_bias": _sampling(
        list[str],
        "--logit-bias",
        "TOKEN_ID=BIAS",
        "Add BIAS to the logit of a token; -inf bans it. Repeatable.",
        advanced=True,
    ),
    "seed": _sampling(
        int,
        "--seed",
        "N",
        "Set the seed. With --exact, the same seed gives the same answer; otherwise only "
        "with the same drafts and threads. Default: random, shown by --stats.",
    ),
}
