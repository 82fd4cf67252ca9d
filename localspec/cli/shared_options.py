"""Options that several verbs share: models, drafting, prompt and answer, sampling, sessions."""

from functools import partial

from localspec import Drafting, ModelOptions, SamplingParams
from localspec.cli.option_groups import default, parameters
from localspec.llama.options import FLASH_ATTENTION, KERNELS, KV_TYPES

MODEL = parameters(f"""
Model:
    -m -hf --model REF
        Open this model: a GGUF file, user/repo[:quant] of Hugging Face, a name from 'localspec
        models', or 'demo', the built-in story model. Default: smollm2 if it is installed, else
        demo. (LOCALSPEC_MODEL)
    --offline *
        Use only files on this machine. (HF_HUB_OFFLINE)
    -c --ctx N
        Set the context length in tokens, for prompt and answer together; 0 uses the model's own,
        at most 8192. {default(ModelOptions, "context")} (LOCALSPEC_CTX)
    -t --threads N|auto
        Use N threads; auto or -1: one per fast core, and fewer while other programs compute.
        {default(ModelOptions, "threads")} (LOCALSPEC_THREADS)
    -ngl --gpu-layers N *
        Put N layers on the GPU; -1 puts all. {default(ModelOptions, "gpu_layers")}
        (LOCALSPEC_GPU_LAYERS)
    --flash-attention WHEN *
        Use flash attention: {", ".join(FLASH_ATTENTION)}.
        {default(ModelOptions, "flash_attention")}
    --kv-type TYPE *
        Set the element type of the KV cache: {", ".join(KV_TYPES)}.
        {default(ModelOptions, "kv_type_k")} (LOCALSPEC_KV_TYPE)
    --kernels WHEN *
        Use localspec's CPU kernels: {", ".join(KERNELS)}. {default(ModelOptions, "kernels")}
        (LOCALSPEC_KERNELS)
    --exact
        Give the same answer as plain decoding, token for token. May be slower (docs/verify.md).
    --mmap/--no-mmap *
        Map the file into memory, or read it. Default --mmap.
    --mlock *
        Keep the weights from being swapped out.
    --rpc HOST:PORT,… *
        Compute the model's layers on llama.cpp RPC servers. The draft model stays here. Repeatable.
    --lora FILE[:SCALE] *
        Apply a LoRA adapter (GGUF) to the model. Default scale 1. Repeatable.
""")

PROJECTOR = parameters("""
Model:
    --mmproj FILE *
        Load the projector (GGUF) of a vision model.
""")

DRAFT_MODEL = parameters(f"""
Draft model:
    -d -md --draft REF|auto|self|none
        Draft with this model: a reference as for --model, auto (the best one on this machine), self
        (made from the model's own file), or none. Default auto. (LOCALSPEC_DRAFT)
    --draft-threads N *
        Use N threads for the draft model. Default: as for the model.
    -ngld --draft-gpu-layers N *
        Put N layers of the draft model on the GPU; -1 puts all. Default: as for the model.
    --lora-draft FILE[:SCALE] *
        Apply a LoRA adapter to the draft model of -d. Repeatable.
    --cross-vocabulary WAY *
        Choose how a draft model with another vocabulary drafts: through text (text), on shared
        tokens (shared), in the better of these ways (auto), or not at all (off).
        {default(ModelOptions, "cross_vocabulary")}
""")


DRAFTING = parameters(f"""
Drafting:
    --drafter NAME
        Choose what proposes tokens: auto (by speed), none (plain decoding), ngram (repeated text),
        model (the draft model). {default(Drafting, "drafter")} (LOCALSPEC_DRAFTER)
    --depth N *
        Draft N tokens per pass. Default: by speed.
    --width N *
        Draft N candidates at each position; above 1, drafts are trees. {default(Drafting, "width")}
    --greedy-drafts *
        Draft the most probable tokens even if the answer is sampled.
    --min-confidence P *
        Stop a draft if the draft model's best token is less probable than P.
        {default(Drafting, "min_confidence")}
    --min-likelihood P *
        Stop a draft if all its tokens together are less probable than P.
        {default(Drafting, "min_likelihood")}
    --rule NAME *
        Set the acceptance rule. Lossless: auto, token, block, match. Lossy, which can change the
        answer: typical, top-k, top-p, threshold. {default(Drafting, "rule")}
    --rule-threshold X *
        Set the threshold of a lossy rule.
""")


ANSWER = parameters("""
Prompt and answer:
    --system TEXT
        Set the system message.
    -n --max-tokens N
        Generate at most N tokens; -1: until the context is full. Default 2048; in chats, -1.
    --stop TEXT *
        End the answer before this text (\\n: a line end). Repeatable.
    --grammar TEXT|@FILE *
        Make the answer match a grammar, in GBNF or Lark. A value without a rule in it is a file,
        with or without the @.
    --json-schema JSON|@FILE
        Make the answer match a JSON schema. A value that does not start with '{' is a file.
    --regex REGEX *
        Make the answer match a regular expression.
    --raw
        Continue the prompt as it is, without a chat template, and read special tokens in it.
""")

_greedy = parameters("""
Sampling:
    --temp --temperature X
        Set the temperature. 0, the default, is greedy.
""")
GREEDY = {"temperature": partial(_greedy["temperature"], default=0.0)}
SAMPLING = parameters(f"""
Sampling:
    --temp --temperature X
        Set the temperature; 0 is greedy. {default(SamplingParams, "temperature")}
        (LOCALSPEC_TEMPERATURE)
    --top-k K *
        Keep the K most probable tokens; 0 keeps all. {default(SamplingParams, "top_k")}
    --top-p P *
        Keep the fewest tokens whose probabilities add up to P; 1 keeps all.
        {default(SamplingParams, "top_p")}
    --min-p P *
        Keep tokens with at least P times the probability of the best one; 0 keeps all.
        {default(SamplingParams, "min_p")}
    --repeat-penalty X *
        Make recent tokens less likely by this factor; 1 turns it off.
        {default(SamplingParams, "repeat_penalty")}
    --frequency-penalty X *
        Subtract X from a logit for each recent occurrence.
        {default(SamplingParams, "frequency_penalty")}
    --presence-penalty X *
        Subtract X from the logit of each token that occurred recently.
        {default(SamplingParams, "presence_penalty")}
    --penalty-last-n N *
        Count the last N tokens as recent; -1 counts all.
        {default(SamplingParams, "penalty_last_n")}
    --logit-bias TOKEN_ID=BIAS *
        Add BIAS to the logit of a token; -inf bans it. Repeatable.
    --seed N
        Set the seed, to repeat an answer; llama.cpp's kernels need --exact too. Default: random.
""")


SESSION = parameters("""
Sessions:
    --session FILE
        Continue the conversation in this file, or begin one, and save it there with the KV caches.
    --prompt-cache SIZE *
        Cache conversations on disk, up to this size (2GB); the least recently used are dropped.
        0 turns caching off. Default: 0; for serve, in memory. (LOCALSPEC_PROMPT_CACHE)
""")

USE = {**MODEL, **PROJECTOR, **DRAFT_MODEL, **DRAFTING, **SAMPLING, **SESSION}
"""The options for opening models and drawing tokens from them, and for sessions."""
