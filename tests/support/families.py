"""Chat templates of the families that people run, and what their vocabularies need for them.

The facts (special tokens, order of the parts, what is refused and how) are those of the published
configurations; the wording is ours, and what no test asks for is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gguf import TokenType

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
    template: str
    control: tuple[str, ...]
    defined: tuple[str, ...] = ()
    begins: str
    system: str
    spaced: bool = False

    def model(self, path: Path, source: Path) -> Path:
        """Write a model with this template."""
        special = [(text, TokenType.CONTROL) for text in self.control]
        special += [(text, TokenType.USER_DEFINED) for text in self.defined]
        return furnished(path, source, special, template=self.template, spaced=self.spaced)


_CHATML = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
_THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")
_LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]")
_TURNS = "{{ raise_exception('Roles must alternate: user, assistant, user, …') }}"

FAMILIES = (
    Family(
        name="chatml",
        template="""\
{% for message in messages %}{% if loop.first and message.role != 'system' %}\
{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
        control=_CHATML,
        begins="<|im_end|>\n<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="chatml-trained",
        template="""\
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' -}}
    {% generation %}{{- message.content + '<|im_end|>\\n' -}}{% endgeneration %}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}""",
        control=_CHATML,
        begins="<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="qwen2.5",
        template="""\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- messages[0]['content'] if messages[0]['role'] == 'system' else 'You are Qwen.' }}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\nAnswer within <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
        control=_CHATML,
        defined=_THINK[2:],
        begins="<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="qwen3",
        template="""\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- if tools %}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(
        message.content.startswith('<tool_response>')
        and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set thought = thought.lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.lstrip('\\n') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
        control=_CHATML,
        defined=(*_THINK, "</tool_response>"),
        begins="<|im_start|>assistant\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="qwen3.5",
        template="""\
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- elif message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}""",
        control=_CHATML,
        defined=_THINK,
        begins="<|im_start|>assistant\n<think>\n",
        system="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n",
    ),
    Family(
        name="llama2",
        template="""\
{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}\
{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}\
{% set system = false %}{% endif %}{% for message in rest %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"""
        + _TURNS
        + """{% endif %}\
{% if loop.index0 == 0 and system != false %}\
{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
        control=("<s>", "</s>"),
        begins=" [/INST]",
        system="<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]",
        spaced=True,
    ),
    Family(
        name="llama3",
        template="""\
{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + \
'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}\
{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
        control=_LLAMA3,
        begins="<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        system="<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>",
    ),
    Family(
        name="llama3.1",
        template="""\
{{- bos_token }}
{%- set date_string = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools %}{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls|length != 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name }}
        {{- '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}""",
        control=_LLAMA3,
        begins="<|start_header_id|>assistant<|end_header_id|>\n\n",
        system="<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>",
    ),
    Family(
        name="mistral-v1",
        template="{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        + _TURNS
        + "{% endif %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
        "{% endfor %}",
        control=("<s>", "</s>"),
        begins=" [/INST]",
        system="<s>[INST] S\n\nU [/INST]",
        spaced=True,
    ),
    Family(
        name="mistral-v3",
        template="""\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results"
        or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{{- tool.function | tojson }}{%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}""",
        control=(*_MISTRAL, "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[/TOOL_RESULTS]"),
        begins="[/INST]",
        system="<s>[INST] S\n\nU[/INST]",
        spaced=True,
    ),
    Family(
        name="mistral-v7",
        template="""\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '[INST]' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- elif message['role'] == 'assistant' %}{{- message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}""",
        control=(*_MISTRAL, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        begins="[/INST]",
        system="<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST]",
    ),
    Family(
        name="gemma2",
        template="{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        + _TURNS
        + "{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
        "{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}",
        control=("<bos>", "<end_of_turn>", "<start_of_turn>", "<eos>"),
        begins="<end_of_turn>\n<start_of_turn>model\n",
        system="<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n",
    ),
    Family(
        name="gemma3",
        template="""\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"""
        + _TURNS
        + """{%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}""",
        control=("<bos>", "<end_of_turn>", "<start_of_turn>", "<eos>"),
        begins="<end_of_turn>\n<start_of_turn>model\n",
        system="<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n",
    ),
    Family(
        name="phi3",
        template="{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}"
        "{% elif message['role'] == 'user' %}"
        "{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}"
        "{% elif message['role'] == 'assistant' %}"
        "{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
        control=("<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>"),
        begins="<|end|>\n<|assistant|>\n",
        system="<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n",
        spaced=True,
    ),
    Family(
        name="phi4",
        template="{% for message in messages %}{% if (message['role'] == 'system') %}"
        "{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}"
        "{% elif (message['role'] == 'user') %}"
        "{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"
        "{% elif (message['role'] == 'assistant') %}"
        "{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}"
        "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
        control=(*_CHATML, "<|im_sep|>"),
        begins="<|im_end|><|im_start|>assistant<|im_sep|>",
        system="<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>U<|im_end|>",
    ),
    Family(
        name="deepseek-r1-distill",
        template="""\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, system_prompt='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}\
{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}\
{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is none %}\
{%- for tool in message['tool_calls']%}{{'<｜Assistant｜><｜tool▁call▁begin｜>' + \
tool['function']['name'] + '\\n' + tool['function']['arguments'] + '<｜tool▁call▁end｜>'}}\
{%- endfor %}{{'<｜end▁of▁sentence｜>'}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}\
{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}\
{%- if message['role'] == 'tool' %}{{'<｜tool▁output▁begin｜>' + message['content'] + \
'<｜tool▁output▁end｜>'}}{%- endif %}{%- endfor -%}\
{% if add_generation_prompt %}{{'<｜Assistant｜><think>\\n'}}{% endif %}""",
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
        template="""\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Today's Date: " + strftime_now('%B %d, %Y') + "." %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}
    {{- '<|start_of_role|>tools<|end_of_role|>' + tools | tojson(indent=4) }}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- if documents %}
    {{- '<|start_of_role|>documents<|end_of_role|>' }}
    {%- for document in documents %}{{- document['text'] }}{%- endfor %}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}
    {{- message['content'] + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}""",
        control=("<|bos|>", "<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
        begins="<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
        system="<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user",
    ),
    Family(
        name="command-r",
        template="""\
{{ bos_token }}{% for message in messages %}{% set content = message['content'] %}\
{% if message['role'] == 'system' %}\
{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% elif message['role'] == 'user' %}\
{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% elif message['role'] == 'assistant' %}\
{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}""",
        control=(
            *("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
            *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
        ),
        begins="<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        system="<BOS_TOKEN><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>",
    ),
    Family(
        name="gpt-oss",
        template="""\
{%- macro said(role, content) -%}
    {{- '<|start|>' + role + '<|message|>' + content + '<|end|>' }}
{%- endmacro -%}
{%- if messages[0].role in ['developer', 'system'] %}
    {%- set developer = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer = '' %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- said('system', 'Reasoning: ' + (reasoning_effort or 'medium')) }}
{%- if developer or tools %}
    {%- set within -%}
        {%- if developer %}{{- '# Instructions\\n\\n' + developer }}{%- endif %}
        {%- for tool in tools or [] %}
            {{- '\\ntype ' + tool.function.name + ' = ' + tool.function | tojson }}
        {%- endfor %}
    {%- endset -%}
    {{- said('developer', within) }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "<|channel|>final<|message|>" in message.content -%}
            {{- raise_exception("Channel tags belong into fields of their own.") }}
        {%- endif -%}
        {%- if "tool_calls" in message -%}
            {%- set tool_call = message.tool_calls[0].function -%}
            {%- set last_tool_call.name = tool_call.name -%}
            {{- '<|start|>assistant to=functions.' + tool_call.name }}
            {{- '<|channel|>commentary json<|message|>' + tool_call.arguments|tojson }}
            {{- '<|call|>' }}
        {%- else -%}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}
            {{- raise_exception("A tool message needs a call before it.") }}
        {%- endif %}
        {{- '<|start|>functions.' + last_tool_call.name + ' to=assistant<|channel|>commentary' }}
        {{- '<|message|>' + message.content|tojson + '<|end|>' }}
    {%- elif message.role == 'user' -%}
        {{- said('user', message.content) }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' }}{%- endif -%}""",
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
        template="{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
        "{% if message['role'] == 'system' %}{{ 'System: ' }}"
        "{% elif message['role'] == 'user' %}{{ 'User: ' }}"
        "{% elif message['role'] == 'assistant' %}{{ 'Falcon: ' }}{% endif %}"
        "{{ message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\\n' + 'Falcon:' }}{% endif %}",
        control=("<|begin|>", "<|endoftext|>", ">>QUESTION<<"),
        begins="\nFalcon:",
        system="System: S\nUser: U",
    ),
    Family(
        name="zephyr",
        template="{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'system' %}\n"
        "{{ '<|system|>\\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n"
        "{% endfor %}",
        control=("<s>", "</s>", "<unk>"),
        begins="</s>\n<|assistant|>\n",
        system="<|system|>\nS</s>\n<|user|>\nU</s>\n",
        spaced=True,
    ),
    Family(
        name="vicuna",
        template="{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}"
        "{% set loop_messages = messages[1:] %}{% else %}{{ 'A chat. ' }}"
        "{% set loop_messages = messages %}{% endif %}{% for message in loop_messages %}"
        "{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}",
        control=("<s>", "</s>"),
        begins="USER: V ASSISTANT:",
        system="S USER: U ",
        spaced=True,
    ),
    Family(
        name="olmo2",
        template="{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}"
        "{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}"
        "{% elif message['role'] == 'assistant' %}{% if not loop.last %}"
        "{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}"
        "{% else %}{{ '<|assistant|>\\n' + message['content'] + eos_token }}{% endif %}"
        "{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
        "{% endfor %}",
        control=("<|beginning|>", "<|endoftext|>"),
        begins="<|assistant|>\n",
        system="<|beginning|><|system|>\nS\n<|user|>\nU\n",
    ),
    Family(
        name="smolvlm",
        template="<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
        "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
        "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
        "<end_of_utterance>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
        control=("<|im_start|>", "<end_of_utterance>", "<image>"),
        begins="<end_of_utterance>\nAssistant:",
        system="<|im_start|>System: S<end_of_utterance>\nUser: U<end_of_utterance>\n",
    ),
)
