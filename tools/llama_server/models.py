"""Make models for llama.cpp's tests, instead of downloading them.

All are variants of the built-in pair, whose answers do not end, like those of llama.cpp's test
models: with fill-in-the-middle tokens, or with another template.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from localspec import paths
from localspec.files import replacing
from localspec.gguf.file import STRING, Array, Value
from localspec.gguf.names import parts_of
from localspec.gguf.reader import read_gguf
from localspec.gguf.writer import NewTensor, write_gguf

TARGET, DRAFT, INFILL, SPLIT = "target", "draft", "infill", "split"

STAND_INS = {
    "ggml-org/test-model-stories260K": TARGET,
    "tinyllamas/stories260K.gguf": TARGET,
    "ggml-org/test-model-stories260K-infill": INFILL,
    "stories15M_MOE-F16.gguf": TARGET,
    "stories15M-q4_0.gguf": DRAFT,
    "tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": SPLIT,
}
"""Stand-ins, by the name of a file or, without one, of a repository."""

_UINT16, _UINT32, _INT32 = 2, 4, 5
_PARTS = 3

TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>"
    "\n\n' + m['content']|trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "command-r": "{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|><|' + {'system': 'SYSTEM', "
    "'user': 'USER', 'assistant': 'CHATBOT'}[m['role']] + '_TOKEN|>' + m['content']|trim "
    "+ '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
}
"""Templates that llama-server knows by name."""

_SPARE = 220
"""First id of the tokens used as infill marks and end tokens; any that are never generated will
do."""
_RENAMED = {b"<|endoftext|>": b"<|begintext|>", b"<|end|>": b"<|fin|>"}
"""Names by which llama.cpp would recognize end-of-answer tokens, and replacements."""


def model_file(name: str, folder: Path, *, template: str | None = None) -> Path:
    """The file of a stand-in.

    Args:
        name: TARGET, DRAFT, INFILL, or SPLIT for the first part of a split one.
        folder: where missing files are created.
        template: jinja2 source, instead of the model's own.
    """
    if name == SPLIT:
        return _in_parts(model_file(TARGET, folder, template=template))
    own = paths.embedded(paths.EMBEDDED_DRAFT if name == DRAFT else paths.EMBEDDED_TARGET)
    marks = ["eos", "eot", *(("fim_pre", "fim_suf", "fim_mid") if name == INFILL else ())]
    added: dict[str, tuple[int, Value]] = {
        f"tokenizer.ggml.{mark}_token_id": (_UINT32, _SPARE + number)
        for number, mark in enumerate(marks)
    }
    if template is not None:
        added["tokenizer.chat_template"] = (STRING, template)
    digest = hashlib.sha256(repr((own.name, added)).encode()).hexdigest()[:12]
    path = folder / f"{own.stem}-{digest}.gguf"
    if not path.exists():
        _changed_copy(own, path, added)
    return path


def _changed_copy(source: Path, path: Path, added: Mapping[str, tuple[int, Value]]) -> None:
    file = read_gguf(source)
    data = source.read_bytes()
    template, tokens = (
        file.metadata[f"tokenizer.{key}"] for key in ("chat_template", "ggml.tokens")
    )
    assert isinstance(template, str)
    assert isinstance(tokens, Array)
    raw = tokens.raw
    for old, new in _RENAMED.items():
        template = template.replace(old.decode(), new.decode())
        raw = raw.replace(old, new)
    renamed: dict[str, Value] = {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.tokens": Array(raw, tokens.kind, len(tokens)),
    }
    tensors = [
        NewTensor(one.name, one.shape, one.type, data[one.offset : one.offset + one.size])
        for one in file.tensors
    ]
    values = {**file.metadata, **renamed, **{key: value for key, (_, value) in added.items()}}
    kinds = {**file.kinds, **{key: kind for key, (kind, _) in added.items()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        write_gguf(partial, values, kinds, tensors)


def _in_parts(whole: Path) -> Path:
    """Split a copy of a file as llama-gguf-split does; returns the first part."""
    names = parts_of(f"{whole.stem}-00001-of-{_PARTS:05d}.gguf")
    paths = [whole.with_name(name) for name in names]
    if all(path.exists() for path in paths):
        return paths[0]
    file, data = read_gguf(whole), whole.read_bytes()
    share = -(-len(file.tensors) // _PARTS)
    for number, path in enumerate(paths):
        tensors = [
            NewTensor(one.name, one.shape, one.type, data[one.offset : one.offset + one.size])
            for one in file.tensors[number * share : (number + 1) * share]
        ]
        facts = {
            "split.no": (_UINT16, number),
            "split.count": (_UINT16, _PARTS),
            "split.tensors.count": (_INT32, len(file.tensors)),
        }
        values = {**(file.metadata if number == 0 else {}), **{k: v for k, (_, v) in facts.items()}}
        kinds = {**file.kinds, **{key: kind for key, (kind, _) in facts.items()}}
        with replacing(path) as partial:
            write_gguf(partial, values, kinds, tensors)
    return paths[0]
