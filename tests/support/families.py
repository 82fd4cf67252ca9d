"""Chat templates of the families that people run (`tests/data/templates`), and what their
vocabularies need for them.

The facts (special tokens, order of the parts, what is refused and how) are those of the published
configurations; the wording is ours, and what no test asks for is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gguf import TokenType

from tests.conftest import DATA
from tests.support.retokenised import furnished


@dataclass(frozen=True, kw_only=True)
class Family:
    """One of them.

    Attributes:
        control: spellings of control tokens, of which the first is BOS and the second EOS.
        defined: of tokens that are defined beside the vocabulary and are no control tokens.
        begins: what a prompt ends with.
        system: what a system prompt S and a question U begin with together.
        spaced: whether the tokenizer is SentencePiece's, with a space before every text.
    """

    name: str
    control: tuple[str, ...]
    defined: tuple[str, ...] = ()
    begins: str
    system: str
    spaced: bool = False

    @cached_property
    def template(self) -> str:
        return (DATA / "templates" / f"{self.name}.jinja").read_text(encoding="utf-8")[:-1]

    def model(self, path: Path, source: Path) -> Path:
        """Write a model with this template."""
        special = [(text, TokenType.CONTROL) for text in self.control]
        special += [(text, TokenType.USER_DEFINED) for text in self.defined]
        return furnished(path, source, special, template=self.template, spaced=self.spaced)


_CHATML = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
_THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")
_LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]")

FAMILIES = (
    Family(
        name="chatml",
        control=_CHATML,
        begins="<|im_end|>\n<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="chatml-trained",
        control=_CHATML,
        begins="<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="qwen2.5",
        control=_CHATML,
        defined=_THINK[2:],
        begins="<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="qwen3",
        control=_CHATML,
        defined=(*_THINK, "</tool_response>"),
        begins="<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="qwen3.5",
        control=_CHATML,
        defined=_THINK,
        begins="<|im_start|>assistant\n<think>\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="llama2",
        control=("<s>", "</s>"),
        begins=" [/INST]",
        system="<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]",
        spaced=True,
    ),
    Family(
        name="llama3",
        control=_LLAMA3,
        begins="<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        system="<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>",
    ),
    Family(
        name="llama3.1",
        control=_LLAMA3,
        begins="<|start_header_id|>assistant<|end_header_id|>\n\n",
        system="<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>",
    ),
    Family(
        name="mistral-v1",
        control=("<s>", "</s>"),
        begins=" [/INST]",
        system="<s>[INST] S\n\nU [/INST]",
        spaced=True,
    ),
    Family(
        name="mistral-v3",
        control=(*_MISTRAL, "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[/TOOL_RESULTS]"),
        begins="[/INST]",
        system="<s>[INST] S\n\nU[/INST]",
        spaced=True,
    ),
    Family(
        name="mistral-v7",
        control=(*_MISTRAL, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        begins="[/INST]",
        system="<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST]",
    ),
    Family(
        name="gemma2",
        control=("<bos>", "<end_of_turn>", "<start_of_turn>", "<eos>"),
        begins="<end_of_turn>\n<start_of_turn>model\n",
        system="<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n",
    ),
    Family(
        name="gemma3",
        control=("<bos>", "<end_of_turn>", "<start_of_turn>", "<eos>"),
        begins="<end_of_turn>\n<start_of_turn>model\n",
        system="<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n",
    ),
    Family(
        name="phi3",
        control=("<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"),
        begins="<|end|>\n<|assistant|>\n",
        system="<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n",
        spaced=True,
    ),
    Family(
        name="phi4",
        control=(*_CHATML, "<|im_sep|>"),
        begins="<|im_end|><|im_start|>assistant<|im_sep|>",
        system="<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>U<|im_end|>",
    ),
    Family(
        name="deepseek-r1-distill",
        control=(
            *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
            *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
            *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        ),
        defined=("<think>", "</think>"),
        begins="<｜Assistant｜><think>\n",
        system="<｜begin▁of▁sentence｜>S<｜User｜>U",
    ),
    Family(
        name="granite3",
        control=("<|bos|>", "<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
        begins="<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
        system="<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user",
    ),
    Family(
        name="command-r",
        control=(
            *("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
            *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
        ),
        begins="<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        system="<BOS_TOKEN><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>",
    ),
    Family(
        name="gpt-oss",
        control=(
            *("<|startoftext|>", "<|return|>", "<|start|>", "<|end|>", "<|message|>"),
            *("<|channel|>", "<|call|>"),
        ),
        begins="<|end|><|start|>assistant",
        system="<|start|>system<|message|>Reasoning: medium<|end|>"
        "<|start|>developer<|message|># Instructions\n\nS<|end|><|start|>user<|message|>U<|end|>",
    ),
    Family(
        name="falcon",
        control=("<|begin|>", "<|endoftext|>", ">>QUESTION<<"),
        begins="\nFalcon:",
        system="System: S\nUser: U",
    ),
    Family(
        name="zephyr",
        control=("<s>", "</s>", "<unk>"),
        begins="</s>\n<|assistant|>\n",
        system="<|system|>\nS</s>\n<|user|>\nU</s>\n",
        spaced=True,
    ),
    Family(
        name="vicuna",
        control=("<s>", "</s>"),
        begins="USER: V ASSISTANT:",
        system="S USER: U ",
        spaced=True,
    ),
    Family(
        name="olmo2",
        control=("<|beginning|>", "<|endoftext|>"),
        begins="<|assistant|>\n",
        system="<|beginning|><|system|>\nS\n<|user|>\nU\n",
    ),
    Family(
        name="smolvlm",
        control=("<|im_start|>", "<end_of_utterance>", "<image>"),
        begins="<end_of_utterance>\nAssistant:",
        system="<|im_start|>System: S<end_of_utterance>\nUser: U<end_of_utterance>\n",
    ),
)
