"""Small chat templates that behave like the published ones in the ways that matter to finding spans: trimmed content, a
system text in the user's turn, a header that nobody asked for, text in the last turn only, no end-of-turn token at all.

`FORMATS` has for each the special tokens that it needs. Transformers renders templates with trimmed and left-stripped
blocks, so line breaks that must be written are given as strings.
"""

from typing import NamedTuple


class ChatFormat(NamedTuple):
    """A template and the special tokens that it writes: `end_of_turn` closes an answer, None where nothing does; `eos` is
    the tokenizer's end of sequence, another token for Gemma; `writes_bos`: the text begins with the tokenizer's BOS."""

    template: str
    end_of_turn: str | None
    eos: str | None
    markers: tuple[str, ...]
    writes_bos: bool


# Llama 3.2: BOS by the template, a system turn always, with two date lines in front of the system text.
LLAMA3 = r"""
{%- macro turn(role, text) -%}
{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\n\n' ~ text ~ '<|eot_id|>' }}
{%- endmacro -%}
{%- set today = date_string if date_string is defined else '26 Jul 2024' -%}
{%- set dates = 'Cutting Knowledge Date: December 2023\nToday Date: ' ~ today ~ '\n\n' -%}
{%- set has_system = messages and messages[0]['role'] == 'system' -%}
{{- bos_token -}}
{{- turn('system', dates ~ (messages[0]['content'] | trim if has_system else '')) -}}
{%- for m in (messages[1:] if has_system else messages) -%}
{{- turn(m['role'], m['content'] | trim) -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}
""".strip()

# Llama 3.0: the same turns without the dates, and no system turn unless there is one.
LLAMA3_UNDATED = r"""
{{- bos_token -}}
{%- for m in messages -%}
{{- '<|start_header_id|>' ~ m['role'] ~ '<|end_header_id|>\n\n' ~ m['content'] | trim ~ '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}
""".strip()

# The turns of a template that refuses those that do not alternate; `name` and `lead` are of Gemma's.
_ALTERNATING = r"""
{%- if m['role'] != ['user', 'assistant'][loop.index0 % 2] -%}
{{ raise_exception('Turns must alternate, beginning with the user') }}
{%- endif -%}
{%- set name = 'model' if m['role'] == 'assistant' else m['role'] -%}
{%- set lead = messages[0]['content'] ~ '\n\n' if has_system and loop.first and m['role'] == 'user' else '' -%}
""".strip()
_GEMMA_TURN = "{{- '<start_of_turn>' ~ name ~ '\\n' ~ lead ~ m['content'] | trim ~ '<end_of_turn>\\n' -}}{%- endfor -%}"
_GEMMA_TURNS = (
    "{%- for m in (messages[1:] if has_system else messages) -%}"
    f"{_ALTERNATING}{_GEMMA_TURN}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"
)

# Gemma 1 and 2: refuses a system message and turns that do not alternate, so no answer can be rendered alone.
GEMMA = (
    "{%- if messages and messages[0]['role'] == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}"
    "{{- bos_token -}}{%- set has_system = false -%}" + _GEMMA_TURNS
)
# Gemma 3: the template itself puts the system text in front of the first user's content.
GEMMA3_LIKE = "{{- bos_token -}}{%- set has_system = messages and messages[0]['role'] == 'system' -%}" + _GEMMA_TURNS

CHATML = r"""
{%- for m in messages -%}
{{- '<|im_start|>' ~ m['role'] ~ '\n' ~ m['content'] ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
""".strip()

# Qwen2: ChatML with a system turn of its own where the messages bring none.
QWEN2_LIKE = (
    r"""
{%- if not messages or messages[0]['role'] != 'system' -%}
{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif -%}
""".strip()
    + CHATML
)

# Qwen3: the answer to the last question gets a reasoning block, an empty one if it has none; from earlier
# answers the reasoning is dropped. So the text of an answer depends on what follows it.
# `enable_thinking=False` closes the block in the generation prompt.
QWEN3_LIKE = r"""
{%- set last = namespace(user=-1) -%}
{%- for m in messages -%}
{%- if m['role'] == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- set text = m['content'] -%}
{%- if m['role'] == 'assistant' -%}
{%- set thought = '' -%}
{%- if '</think>' in text -%}
{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set text = text.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{%- if loop.index0 > last.user and (loop.last or thought) -%}
{%- set text = '<think>\n' ~ thought ~ '\n</think>\n\n' ~ text -%}
{%- endif -%}
{%- endif -%}
{{- '<|im_start|>' ~ m['role'] ~ '\n' ~ text ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}
{%- endif -%}
""".strip()


def _inst(before: str, after: str, answer: str) -> str:
    """The [INST] family: the system text goes in front of the first question, and only answers are closed.

    `before` and `after` stand at the two ends of a question, `answer` in front of an answer.
    """
    question = f"{{{{- '[INST]{before}' ~ lead ~ m['content'] ~ '{after}[/INST]' -}}}}"
    reply = f"{{{{- '{answer}' ~ m['content'] ~ eos_token -}}}}"
    turn = "{%- if m['role'] == 'user' -%}" + question + "{%- else -%}" + reply + "{%- endif -%}"
    begin = "{{- bos_token -}}{%- set has_system = messages and messages[0]['role'] == 'system' -%}"
    return (
        begin + "{%- for m in (messages[1:] if has_system else messages) -%}" + _ALTERNATING + turn + "{%- endfor -%}"
    )


MISTRAL_V1 = _inst(" ", " ", " ")  # [INST] is plain text to the first model
MISTRAL = _inst(" ", "", " ")  # SentencePiece v3: control tokens, each followed by a space
MISTRAL_TEKKEN = _inst("", "", "")

ZEPHYR = r"""
{%- for m in messages -%}
{{- '<|' ~ m['role'] ~ '|>\n' ~ m['content'] ~ eos_token ~ '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}
""".strip()

# No special token anywhere: nothing closes an answer but a line break, which an answer may hold itself.
PLAIN_NO_EOT = r"""
{%- for m in messages -%}
{{- m['role'] | capitalize ~ ': ' ~ m['content'] ~ '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
""".strip()

# ChatML whose first turn carries the day of the rendering.
DATED = r"""
{%- set day = strftime_now('%d %B %Y') if strftime_now is defined else '1 January 2024' -%}
{%- set has_system = messages and messages[0]['role'] == 'system' -%}
{{- '<|im_start|>system\nToday is ' ~ day ~ '.' -}}
{{- '\n\n' ~ messages[0]['content'] if has_system else '' -}}
{{- '<|im_end|>\n' -}}
{%- for m in (messages[1:] if has_system else messages) -%}
{{- '<|im_start|>' ~ m['role'] ~ '\n' ~ m['content'] ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
""".strip()

_LLAMA3 = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_GEMMA = ("<start_of_turn>", "<end_of_turn>", "<eos>")
_CHATML = ("<|im_start|>", "<|im_end|>")
_INST = ("[INST]", "[/INST]", "</s>")

FORMATS: dict[str, ChatFormat] = {
    "llama3": ChatFormat(LLAMA3, "<|eot_id|>", "<|eot_id|>", _LLAMA3, True),
    "llama3_undated": ChatFormat(LLAMA3_UNDATED, "<|eot_id|>", "<|eot_id|>", _LLAMA3, True),
    "gemma": ChatFormat(GEMMA, "<end_of_turn>", "<eos>", _GEMMA, True),
    "gemma3": ChatFormat(GEMMA3_LIKE, "<end_of_turn>", "<eos>", _GEMMA, True),
    "chatml": ChatFormat(CHATML, "<|im_end|>", "<|im_end|>", _CHATML, False),
    "qwen2": ChatFormat(QWEN2_LIKE, "<|im_end|>", "<|im_end|>", _CHATML, False),
    "qwen3": ChatFormat(QWEN3_LIKE, "<|im_end|>", "<|im_end|>", _CHATML, False),
    "mistral": ChatFormat(MISTRAL, "</s>", "</s>", _INST, True),
    "mistral_v1": ChatFormat(MISTRAL_V1, "</s>", "</s>", ("</s>",), True),
    "mistral_tekken": ChatFormat(MISTRAL_TEKKEN, "</s>", "</s>", _INST, True),
    "zephyr": ChatFormat(ZEPHYR, "</s>", "</s>", ("</s>",), False),
    "plain_no_eot": ChatFormat(PLAIN_NO_EOT, None, None, (), False),
    "dated": ChatFormat(DATED, "<|im_end|>", "<|im_end|>", _CHATML, False),
}

# Templates that know tools.

# Hermes 2 and 3: results have the name of their function, and come under the role `tool`.
HERMES_TOOLS = r"""
{%- if tools -%}
{{ '<|im_start|>system\nYou may call these functions: <tools>' ~ tools | tojson ~ '</tools><|im_end|>\n' }}
{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' ~ m.role -}}
{%- if m.role == 'tool' -%}
{%- if m.name is not defined -%}{{ raise_exception("A tool's response needs a name") }}{%- endif -%}
{{ '\n<tool_response>\n{"name": "' ~ m.name ~ '", "content": ' ~ m.content | tojson ~ '}\n</tool_response><|im_end|>\n' }}
{%- elif m.tool_calls is defined -%}
{%- for call in m.tool_calls -%}
{{ '\n<tool_call>\n{"arguments": ' ~ call.function.arguments | tojson ~ ', "name": "' ~ call.function.name ~ '"}' }}
{{- '\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- else -%}
{{ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
""".strip()

_MISTRAL_TOOL_TURNS = r"""
{{- bos_token -}}
{%- set asked = namespace(last=none) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set asked.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and loop.index0 == asked.last -%}
{{ '[AVAILABLE_TOOLS] ' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}
{%- endif -%}
{{ '[INST] ' ~ m.content ~ '[/INST]' }}
{%- elif m.tool_calls is defined -%}
CALLS
{%- elif m.role == 'tool' -%}
RESULT
{%- else -%}
{{ ' ' ~ m.content ~ eos_token }}
{%- endif -%}
{%- endfor -%}
""".strip()

# Mistral v3: the tools stand before the last question, calls are one list, and identifiers have nine characters.
MISTRAL_V3_TOOLS = _MISTRAL_TOOL_TURNS.replace(
    "CALLS",
    r"""
{{- '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls -%}
{%- if call.id is not defined or call.id | length != 9 -%}{{ raise_exception('Nine characters, please') }}{%- endif -%}
{{ (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' ~ ('' if loop.last else ', ') }}
{%- endfor -%}
{{ ']' ~ eos_token }}
""".strip(),
).replace(
    "RESULT",
    """{{ '[TOOL_RESULTS] {"content": ' ~ m.content ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}""",
)

# Mistral v11 and later: each call by itself, its name and its arguments.
MISTRAL_V11_TOOLS = _MISTRAL_TOOL_TURNS.replace(
    "CALLS",
    r"""
{{- m.content }}
{%- for call in m.tool_calls -%}
{{ '[TOOL_CALLS]' ~ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson }}
{%- endfor -%}
{{ eos_token }}
""".strip(),
).replace("RESULT", "{{ '[TOOL_RESULTS]' ~ m.content ~ '[/TOOL_RESULTS]' }}")

TOOL_TEMPLATES = {"hermes": HERMES_TOOLS, "mistral_v3": MISTRAL_V3_TOOLS, "mistral_v11": MISTRAL_V11_TOOLS}
