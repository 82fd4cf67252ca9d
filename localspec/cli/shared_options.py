"""Options that several verbs share: models, drafting, prompt and answer, sampling, sessions."""

from functools import partial

from localspec import Drafting, ModelOptions, SamplingParams
from localspec.cli.option_groups import default, in_panel
from localspec.drafters.options import OVERLAPS
from localspec.llama.options import FLASH_ATTENTION, KERNELS, KV_TYPES

_model = in_panel("Model")
_rare_model = in_panel("Model", advanced=True)
_draft = in_panel("Draft model")
_rare_draft = in_panel("Draft model", advanced=True)

MODEL = {
    "model": _model(
        "-m -hf --model REF",
        "Open this model: a GGUF file, user/repo[:quant] of Hugging Face, a name from 'localspec "
        "models', or 'demo', the built-in story model. Default: smollm2 if it is installed, else "
        "demo. (LOCALSPEC_MODEL)",
    ),
    "offline": _rare_model("--offline", "Use only files on this machine. (HF_HUB_OFFLINE)"),
    "ctx": _model(
        "-c --ctx N",
        "Set the context length in tokens, for prompt and answer together; 0 takes the model's "
        f"own, at most 8192. {default(ModelOptions, 'context')} (LOCALSPEC_CTX)",
    ),
    "threads": _model(
        "-t --threads N|auto",
        "Use N threads; auto or -1: one per physical core, and fewer while other programs compute. "
        f"{default(ModelOptions, 'threads')} (LOCALSPEC_THREADS)",
    ),
    "gpu_layers": _rare_model(
        "-ngl --gpu-layers N",
        f"Put N layers on the GPU; -1 puts all. {default(ModelOptions, 'gpu_layers')} "
        "(LOCALSPEC_GPU_LAYERS)",
    ),
    "flash_attention": _rare_model(
        "--flash-attention WHEN",
        f"Use flash attention: {', '.join(FLASH_ATTENTION)}. "
        f"{default(ModelOptions, 'flash_attention')}",
    ),
    "kv_type": _rare_model(
        "--kv-type TYPE",
        f"Set the element type of the KV cache: {', '.join(KV_TYPES)}. "
        f"{default(ModelOptions, 'kv_type_k')} (LOCALSPEC_KV_TYPE)",
    ),
    "kernels": _rare_model(
        "--kernels WHEN",
        f"Use localspec's CPU kernels: {', '.join(KERNELS)}. {default(ModelOptions, 'kernels')} "
        "(LOCALSPEC_KERNELS)",
    ),
    "exact": _model(
        "--exact",
        "Give the same answer as plain decoding, token for token. May be slower (docs/verify.md).",
    ),
    "mmap": _rare_model(
        "--mmap/--no-mmap", "Map the file into memory, or read it. Default --mmap."
    ),
    "mlock": _rare_model("--mlock", "Keep the weights from being swapped out."),
    "rpc": _rare_model(
        "--rpc HOST:PORT,…",
        "Compute the model's layers on llama.cpp RPC servers. The draft model stays here. "
        "Repeatable.",
    ),
    "lora": _rare_model(
        "--lora FILE[:SCALE]",
        "Apply a LoRA adapter (GGUF) to the model. Default scale 1. Repeatable.",
    ),
}

PROJECTOR = {"mmproj": _rare_model("--mmproj FILE", "Load the projector (GGUF) of a vision model.")}

DRAFT_MODEL = {
    "draft": _draft(
        "-d -md --draft REF|auto|self|none",
        "Draft with this model: a reference as for --model, auto (the best one on this machine), "
        "self (made from the model's own file), or none. Default auto. (LOCALSPEC_DRAFT)",
    ),
    "draft_threads": _rare_draft(
        "--draft-threads N", "Use N threads for the draft model. Default: as for the model."
    ),
    "draft_gpu_layers": _rare_draft(
        "-ngld --draft-gpu-layers N",
        "Put N layers of the draft model on the GPU; -1 puts all. Default: as for the model.",
    ),
    "lora_draft": _rare_draft(
        "--lora-draft FILE[:SCALE]", "Apply a LoRA adapter to the draft model of -d. Repeatable."
    ),
    "cross_vocabulary": _rare_draft(
        "--cross-vocabulary WAY",
        "Use a draft model with another vocabulary through text (text), on shared tokens (shared), "
        "in the better of both ways (auto), or not at all (off). "
        f"{default(ModelOptions, 'cross_vocabulary')}",
    ),
}

_drafting = in_panel("Drafting")
_rare_drafting = in_panel("Drafting", advanced=True)

DRAFTING = {
    "drafter": _drafting(
        "--drafter NAME",
        "Choose who proposes tokens: auto (what pays), none (plain decoding), ngram (repeated "
        f"text), model (the draft model). {default(Drafting, 'drafter')} (LOCALSPEC_DRAFTER)",
    ),
    "depth": _rare_drafting("--depth N", "Draft N tokens per pass. Default: what pays."),
    "width": _rare_drafting(
        "--width N",
        "Draft N candidates at each position; above 1, drafts are trees. "
        f"{default(Drafting, 'width')}",
    ),
    "greedy_drafts": _rare_drafting(
        "--greedy-drafts", "Draft the most probable tokens even if the answer is sampled."
    ),
    "min_confidence": _rare_drafting(
        "--min-confidence P",
        "Stop a draft if the draft model's best token is less probable than P. "
        f"{default(Drafting, 'min_confidence')}",
    ),
    "min_likelihood": _rare_drafting(
        "--min-likelihood P",
        "Stop a draft if all its tokens together are less probable than P. "
        f"{default(Drafting, 'min_likelihood')}",
    ),
    "rule": _rare_drafting(
        "--rule NAME",
        "Set the acceptance rule. Lossless: auto, token, block, match. Lossy, which can change "
        f"the answer: typical, top-k, top-p, threshold. {default(Drafting, 'rule')}",
    ),
    "rule_threshold": _rare_drafting("--rule-threshold X", "Set the threshold of a lossy rule."),
    "overlap": _rare_drafting(
        "--overlap WHEN",
        "Draft while the target verifies, if the two have separate devices or cores: "
        f"{', '.join(OVERLAPS)}; auto means off. {default(Drafting, 'overlap')}",
    ),
}

_answer = in_panel("Prompt and answer")
_rare_answer = in_panel("Prompt and answer", advanced=True)
_sampling = in_panel("Sampling")
_rare_sampling = in_panel("Sampling", advanced=True)

ANSWER = {
    "system": _answer("--system TEXT", "Set the system message."),
    "max_tokens": _answer(
        "-n --max-tokens N",
        "Generate at most N tokens; -1: until the context is full. Default 2048, in a chat -1.",
    ),
    "stop": _rare_answer(
        "--stop TEXT", r"End the answer before this text (\n: a line end). Repeatable."
    ),
    "grammar": _rare_answer(
        "--grammar TEXT|@FILE",
        "Make the answer match a grammar, in GBNF or Lark. A value without a rule in it is a "
        "file, with or without the @.",
    ),
    "json_schema": _answer(
        "--json-schema JSON|@FILE",
        "Make the answer match a JSON schema. A value that does not start with '{' is a file, "
        "with or without the @.",
    ),
    "regex": _rare_answer("--regex REGEX", "Make the answer match a regular expression."),
    "raw": _answer(
        "--raw",
        "Continue the prompt as it is, without a chat template. Special tokens in it count.",
    ),
}

GREEDY = {
    "temperature": partial(
        _sampling("--temp --temperature X", "Set the temperature. 0, the default, is greedy."),
        default=0.0,
    )
}
SAMPLING = {
    "temperature": _sampling(
        "--temp --temperature X",
        f"Set the temperature; 0 is greedy. {default(SamplingParams, 'temperature')} "
        "(LOCALSPEC_TEMPERATURE)",
    ),
    "top_k": _rare_sampling(
        "--top-k K",
        f"Keep the K most probable tokens; 0 keeps all. {default(SamplingParams, 'top_k')}",
    ),
    "top_p": _rare_sampling(
        "--top-p P",
        "Keep the fewest tokens whose probabilities add up to P; 1 keeps all. "
        f"{default(SamplingParams, 'top_p')}",
    ),
    "min_p": _rare_sampling(
        "--min-p P",
        "Keep tokens with at least P times the probability of the best one; 0 keeps all. "
        f"{default(SamplingParams, 'min_p')}",
    ),
    "repeat_penalty": _rare_sampling(
        "--repeat-penalty X",
        "Make recent tokens less likely by this factor; 1 turns it off. "
        f"{default(SamplingParams, 'repeat_penalty')}",
    ),
    "frequency_penalty": _rare_sampling(
        "--frequency-penalty X",
        "Subtract X from a logit for each recent occurrence. "
        f"{default(SamplingParams, 'frequency_penalty')}",
    ),
    "presence_penalty": _rare_sampling(
        "--presence-penalty X",
        "Subtract X from the logit of each token that occurred recently. "
        f"{default(SamplingParams, 'presence_penalty')}",
    ),
    "penalty_last_n": _rare_sampling(
        "--penalty-last-n N",
        "Count the last N tokens as recent; -1 counts all. "
        f"{default(SamplingParams, 'penalty_last_n')}",
    ),
    "logit_bias": _rare_sampling(
        "--logit-bias TOKEN_ID=BIAS", "Add BIAS to the logit of a token; -inf bans it. Repeatable."
    ),
    "seed": _sampling(
        "--seed N",
        "Set the seed, which gives the same answer again; without localspec's kernels, with "
        "--exact. Default: random, shown by --stats.",
    ),
}

_session = in_panel("Sessions")
_rare_session = in_panel("Sessions", advanced=True)

SESSION = {
    "session": _session(
        "--session FILE",
        "Continue the conversation in this file and save it there, with the models' caches. The "
        "file is created if it does not exist.",
    ),
    "prompt_cache": _rare_session(
        "--prompt-cache SIZE",
        "Cache conversations on disk, up to this size (2GB); the least recently used are dropped. "
        "Default 0: off. (LOCALSPEC_PROMPT_CACHE)",
    ),
}
