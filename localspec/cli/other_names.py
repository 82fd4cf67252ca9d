"""Names that other programs use for commands and options, such as llama.cpp's and ollama's."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

_TEXT = """
run: ask prompt query generate complete infer speculate
chat: repl interactive ui gui use load open
serve: server api web ui start up daemon host embed
models: search find library
pull: download install get fetch add update upgrade
list: ls ps cache
show: info inspect details describe cat get print view open
rm: remove delete del uninstall erase clear clean purge prune
doctor: check test status health setup init
race: compare demo
bench: benchmark compare perf
distill: train finetune tune
history: log logs conversation conversations chats sessions
search: find grep
export: save write dump
prompt: -p --prompt -f --file
--model: --hf-repo --hf-file -hfr -hff -mu --model-url --model-path
--ctx: --ctx-size --context --context-length --context-size --num-ctx --n-ctx --max-model-len
--threads: --n-threads --num-thread --num-threads
--gpu-layers: --n-gpu-layers --num-gpu --gpu
--flash-attention: -fa --flash-attn
--kv-type: -ctk -ctv --cache-type-k --cache-type-v --kv-cache-type
--max-tokens: --n-predict --predict --num-predict --max-new-tokens --max-length
--system: -sys --system-prompt
--grammar: --grammar-file
--json-schema: -j -jf --json-schema-file --schema --format
--repeat-penalty: --repetition-penalty
--penalty-last-n: --repeat-last-n
--stop: -r --reverse-prompt
--draft: --model-draft --draft-model --speculative-model --assistant-model
--drafter: --spec-type
--depth: --draft-max --draft-n --num-draft-tokens --num-speculative-tokens --spec-draft-n-max
--min-confidence: --draft-p-min --spec-draft-p-min
--draft-threads: -td --threads-draft
--draft-gpu-layers: --gpu-layers-draft --n-gpu-layers-draft
--parallel: -np --n-parallel --num-parallel
--port: -p
--no-ui: --no-webui
--output: --out --file --save
--quiet: --silent --log-disable
--verbose: --debug
--yes: -f --force
"""
_OTHERS = {line.partition(":")[0]: line.split()[1:] for line in _TEXT.strip().splitlines() if line}
_HARMFUL = {"rm"}  # commands that delete; suggested last for a mistyped word


def advised(refusal: str, word: str, known: Collection[str], otherwise: Sequence[str] = ()) -> str:
    """The refusal of a word, with the known names that it might mean, else `otherwise`."""
    close = elsewhere(word, known) or list(otherwise) or _alike(word, known)
    if close == ["prompt"]:
        return f"{refusal}. Write the prompt in quotes, without an option. A file can be piped in."
    return f"{refusal}. Did you mean {' or '.join(map(repr, close))}?" if close else refusal


def elsewhere(word: str, known: Collection[str]) -> list[str]:
    """The known names that are this word in other programs, or with other hyphens."""
    spelled = word.replace("_", "-")
    whole = "--" + spelled.lstrip("-")
    return [name for name in known if name == whole or spelled in _OTHERS.get(name, ())]


def _alike(word: str, known: Collection[str]) -> list[str]:
    """Similar names, ignoring leading hyphens, which would make all options similar."""
    fit = (name for name in known if name[0] == "-" or word[0] != "-")  # no argument is an option
    plain = {name.lstrip("-"): name for name in fit}
    found = [plain[name] for name in get_close_matches(word.lstrip("-"), plain)]
    return sorted(found, key=_HARMFUL.__contains__)
