"""The options of verbs that generate, as typer wants them declared.

Every option is None until it is given: the defaults are those of the dataclasses (and of
`localspec.settings`), which the help texts quote. `localspec.cli.request` makes records of them.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from localspec import Drafting, ModelOptions, SamplingParams
from localspec.drafting import OVERLAPS
from localspec.llama.options import CROSS_VOCABULARY, FLASH_ATTENTION, KV_TYPES

MODEL, DRAFTING, SAMPLING = "Model", "Drafting", "Sampling"
ANSWER, OUTPUT = "Prompt and answer", "Output"


def _default(record: type[Any], name: str) -> str:
    """A field's default as help texts end with it."""
    found = next(field for field in dataclasses.fields(record) if field.name == name)
    return f"Default {found.default}."


def _option(*names: str, panel: str, help: str, metavar: str = "") -> Any:
    """An option; one without a metavar is a flag."""
    return typer.Option(
        *names, metavar=metavar, help=help, rich_help_panel=panel, show_default=False
    )


Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
        show_default=False,
        help="The prompt. Text piped into standard input is put before it, with a blank line "
        "between them; '-' or no prompt takes that text alone.",
    ),
]

Model = Annotated[
    str | None,
    _option(
        *("-m", "--model"),
        panel=MODEL,
        metavar="REF",
        help="The model: path of a GGUF file, user/repo[:quant] of Hugging Face once it is pulled, "
        "a name that 'localspec models' lists, or 'demo'. Default the embedded model. "
        "(LOCALSPEC_MODEL)",
    ),
]
Offline = Annotated[
    bool | None,
    _option(
        "--offline",
        panel=MODEL,
        help="Use what is on this machine, and say what is missing. (HF_HUB_OFFLINE)",
    ),
]
Context = Annotated[
    int | None,
    _option(
        *("-c", "--ctx"),
        panel=MODEL,
        metavar="N",
        help="Tokens that prompt and answer have together, 0 for what the model was trained on, "
        f"at most 8192. {_default(ModelOptions, 'context')} (LOCALSPEC_CTX)",
    ),
]
Threads = Annotated[
    int | None,
    _option(
        *("-t", "--threads"),
        panel=MODEL,
        metavar="N",
        help="Threads. Default one per physical core. (LOCALSPEC_THREADS)",
    ),
]
GpuLayers = Annotated[
    int | None,
    _option(
        "--gpu-layers",
        panel=MODEL,
        metavar="N",
        help="Layers to offload, -1 for all. "
        f"{_default(ModelOptions, 'gpu_layers')} (LOCALSPEC_GPU_LAYERS)",
    ),
]
DraftThreads = Annotated[
    int | None,
    _option(
        "--draft-threads",
        panel=DRAFTING,
        metavar="N",
        help="Threads of the draft model. Default as many as the model's.",
    ),
]
DraftGpuLayers = Annotated[
    int | None,
    _option(
        "--draft-gpu-layers",
        panel=DRAFTING,
        metavar="N",
        help="Layers of the draft model to offload, -1 for all. Default as for the model.",
    ),
]
LighterDraft = Annotated[
    bool | None,
    _option(
        "--lighter-draft/--no-lighter-draft",
        panel=DRAFTING,
        help="On a CPU, use a Q4_0 copy of the draft model where it is faster. "
        "Default --lighter-draft.",
    ),
]
CrossVocabulary = Annotated[
    str | None,
    _option(
        "--cross-vocabulary",
        panel=DRAFTING,
        metavar="WAY",
        help="What to do with a draft model that has another vocabulary: draft through text, on "
        f"the shared tokens, the better of the two, or refuse it: {', '.join(CROSS_VOCABULARY)}. "
        f"{_default(ModelOptions, 'cross_vocabulary')}",
    ),
]
Overlap = Annotated[
    str | None,
    _option(
        "--overlap",
        panel=DRAFTING,
        metavar="WHEN",
        help="Let the draft model go on while the model verifies, where they have devices or "
        f"cores of their own: {', '.join(OVERLAPS)}. {_default(Drafting, 'overlap')}",
    ),
]
FlashAttention = Annotated[
    str | None,
    _option(
        "--flash-attention",
        panel=MODEL,
        metavar="WHEN",
        help=f"{', '.join(FLASH_ATTENTION)}. {_default(ModelOptions, 'flash_attention')}",
    ),
]
KvType = Annotated[
    str | None,
    _option(
        "--kv-type",
        panel=MODEL,
        metavar="TYPE",
        help=f"Element type of the KV cache: {', '.join(KV_TYPES)}. "
        f"{_default(ModelOptions, 'kv_type_k')} (LOCALSPEC_KV_TYPE)",
    ),
]
Mmap = Annotated[
    bool | None,
    _option("--mmap/--no-mmap", panel=MODEL, help="Map the file, or read it. Default --mmap."),
]
Mlock = Annotated[
    bool | None, _option("--mlock", panel=MODEL, help="Keep the weights from being swapped out.")
]
Rpc = Annotated[
    list[str] | None,
    _option(
        "--rpc",
        panel=MODEL,
        metavar="HOST:PORT",
        help="Share the layers with a llama.cpp RPC server. Repeatable.",
    ),
]

Draft = Annotated[
    str | None,
    _option(
        *("-d", "--draft"),
        panel=DRAFTING,
        metavar="REF|auto|none",
        help="The draft model: a reference as for --model, best with its vocabulary, 'auto' for "
        "the local one that promises most, or 'none'. Default auto. (LOCALSPEC_DRAFT)",
    ),
]
Drafter = Annotated[
    str | None,
    _option(
        "--drafter",
        panel=DRAFTING,
        metavar="NAME",
        help="Who proposes tokens: auto, none, ngram, model, cascade, model+ngram or ngram+model. "
        f"{_default(Drafting, 'drafter')} (LOCALSPEC_DRAFTER)",
    ),
]
Depth = Annotated[
    int | None,
    _option(
        "--depth",
        panel=DRAFTING,
        metavar="N",
        help="Tokens drafted per pass. Default what pays.",
    ),
]
Width = Annotated[
    int | None,
    _option(
        "--width",
        panel=DRAFTING,
        metavar="N",
        help="Candidates at each place; above 1 the drafts are trees. "
        f"{_default(Drafting, 'width')}",
    ),
]
GreedyDrafts = Annotated[
    bool | None,
    _option(
        "--greedy-drafts",
        panel=DRAFTING,
        help="Draft the most probable tokens even where the answer is sampled.",
    ),
]
MinConfidence = Annotated[
    float | None,
    _option(
        "--min-confidence",
        panel=DRAFTING,
        metavar="P",
        help="The draft model stops where its best token is less probable. "
        f"{_default(Drafting, 'min_confidence')}",
    ),
]
MinLikelihood = Annotated[
    float | None,
    _option(
        "--min-likelihood",
        panel=DRAFTING,
        metavar="P",
        help="The draft model stops where all its tokens together are less probable. "
        f"{_default(Drafting, 'min_likelihood')}",
    ),
]
Rule = Annotated[
    str | None,
    _option(
        "--rule",
        panel=DRAFTING,
        metavar="NAME",
        help="Acceptance rule. Lossless: auto, token, block. Lossy, which can change the answer: "
        f"typical, top-k, top-p, threshold. {_default(Drafting, 'rule')}",
    ),
]
RuleThreshold = Annotated[
    float | None,
    _option(
        "--rule-threshold",
        panel=DRAFTING,
        metavar="X",
        help="Threshold of a lossy rule, instead of its own.",
    ),
]

Temperature = Annotated[
    float | None,
    _option(
        *("--temp", "--temperature"),
        panel=SAMPLING,
        metavar="X",
        help=f"0 is greedy. {_default(SamplingParams, 'temperature')} (LOCALSPEC_TEMPERATURE)",
    ),
]
TopK = Annotated[
    int | None,
    _option(
        "--top-k",
        panel=SAMPLING,
        metavar="K",
        help=f"Keep the K most probable tokens, 0 for all. {_default(SamplingParams, 'top_k')}",
    ),
]
TopP = Annotated[
    float | None,
    _option(
        "--top-p",
        panel=SAMPLING,
        metavar="P",
        help="Keep the fewest tokens with this probability together, 1 for all. "
        f"{_default(SamplingParams, 'top_p')}",
    ),
]
MinP = Annotated[
    float | None,
    _option(
        "--min-p",
        panel=SAMPLING,
        metavar="P",
        help="Keep tokens at least this probable relative to the best one, 0 for all. "
        f"{_default(SamplingParams, 'min_p')}",
    ),
]
RepeatPenalty = Annotated[
    float | None,
    _option(
        "--repeat-penalty",
        panel=SAMPLING,
        metavar="X",
        help="Make recent tokens less likely by this factor, 1 for off. "
        f"{_default(SamplingParams, 'repeat_penalty')}",
    ),
]
FrequencyPenalty = Annotated[
    float | None,
    _option(
        "--frequency-penalty",
        panel=SAMPLING,
        metavar="X",
        help="Taken off a logit for each recent occurrence. "
        f"{_default(SamplingParams, 'frequency_penalty')}",
    ),
]
PresencePenalty = Annotated[
    float | None,
    _option(
        "--presence-penalty",
        panel=SAMPLING,
        metavar="X",
        help="Taken off a logit that occurred recently. "
        f"{_default(SamplingParams, 'presence_penalty')}",
    ),
]
PenaltyLastN = Annotated[
    int | None,
    _option(
        "--penalty-last-n",
        panel=SAMPLING,
        metavar="N",
        help="How many tokens are recent, -1 for all. "
        f"{_default(SamplingParams, 'penalty_last_n')}",
    ),
]
LogitBias = Annotated[
    list[str] | None,
    _option(
        "--logit-bias",
        panel=SAMPLING,
        metavar="TOKEN_ID=BIAS",
        help="Added to the logit of a token; -inf bans it. Repeatable.",
    ),
]
Seed = Annotated[
    int | None,
    _option(
        "--seed",
        panel=SAMPLING,
        metavar="N",
        help="The same seed and the same drafts give the same answer: for that, fix those as well, "
        "with --drafter. Default a new one, which --stats shows.",
    ),
]

System = Annotated[
    str | None,
    _option("--system", panel=ANSWER, metavar="TEXT", help="System message, before the prompt."),
]
Raw = Annotated[
    bool,
    _option("--raw", panel=ANSWER, help="Continue the prompt as it is, without the chat template."),
]
MaxTokens = Annotated[
    int | None,
    _option(
        *("-n", "--max-tokens"),
        panel=ANSWER,
        metavar="N",
        help="Longest answer. Default up to the end of the context.",
    ),
]
Stop = Annotated[
    list[str] | None,
    _option(
        "--stop",
        panel=ANSWER,
        metavar="TEXT",
        help="End the answer before this text. Repeatable.",
    ),
]
GrammarText = Annotated[
    str | None,
    _option(
        "--grammar",
        panel=ANSWER,
        metavar="GBNF|@FILE",
        help="Grammar that the answer has to match. A value without '::=' is the path of a file, "
        "with or without the @.",
    ),
]
JsonSchema = Annotated[
    str | None,
    _option(
        "--json-schema",
        panel=ANSWER,
        metavar="JSON|@FILE",
        help="JSON schema that the answer has to match. A value that does not begin with '{' is "
        "the path of a file, with or without the @.",
    ),
]

Stats = Annotated[
    bool,
    _option("--stats", panel=OUTPUT, help="All figures as a table on standard error."),
]
Json = Annotated[
    bool,
    _option("--json", panel=OUTPUT, help="One JSON object with text and figures at the end."),
]
Jsonl = Annotated[
    bool, _option("--jsonl", panel=OUTPUT, help="One JSON object per event, as it happens.")
]
PrintJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Quiet = Annotated[
    bool, _option("-q", "--quiet", panel=OUTPUT, help="Nothing but the answer and errors.")
]
Verbose = Annotated[
    int,
    typer.Option(
        *("-v", "--verbose"),
        count=True,
        rich_help_panel=OUTPUT,
        show_default=False,
        metavar="",
        help="The log, llama.cpp's included, on standard error; -vv has more of it.",
    ),
]
