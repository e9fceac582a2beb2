"""Chat templates that differ in what matters to finding spans: published ones that TRL's wheel holds, and small ones.

`FORMATS` has for each the special tokens that it needs. Transformers renders templates with trimmed and left-stripped
blocks, so line breaks that must be written are given as strings.
"""

from typing import NamedTuple

from .trl_templates import templates


class ChatFormat(NamedTuple):
    """A template and the special tokens that it writes: `end_of_turn` closes an answer, None where nothing does; `eos` is
    the tokenizer's end of sequence, another token for Gemma; `writes_bos`: the text begins with the tokenizer's BOS."""

    template: str | None
    end_of_turn: str | None
    eos: str | None
    markers: tuple[str, ...]
    writes_bos: bool


CHATML = r"""
{%- for m in messages -%}
{{- '<|im_start|>' ~ m['role'] ~ '\n' ~ m['content'] ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
""".strip()

# The turns of a template that refuses those that do not alternate.
_ALTERNATING = r"""
{%- if m['role'] != ['user', 'assistant'][loop.index0 % 2] -%}
{{ raise_exception('Turns must alternate, beginning with the user') }}
{%- endif -%}
{%- set lead = messages[0]['content'] ~ '\n\n' if has_system and loop.first and m['role'] == 'user' else '' -%}
""".strip()


def _inst(before: str, after: str, answer: str) -> str:
    """The [INST] family: the system text goes in front of the first question, and only answers are closed. `before` and
    `after` stand at the two ends of a question, `answer` in front of an answer."""
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

_REAL = templates()
FORMATS: dict[str, ChatFormat] = {
    # With a system turn always, and two lines of dates in front of the system text.
    "llama3": ChatFormat(_REAL.get("llama3_2"), "<|eot_id|>", "<|eot_id|>", _LLAMA3, True),
    "llama3_undated": ChatFormat(_REAL.get("llama3"), "<|eot_id|>", "<|eot_id|>", _LLAMA3, True),
    # Gemma 1 and 2 refuse a system message; both refuse turns that do not alternate, so no answer can be rendered alone.
    "gemma": ChatFormat(_REAL.get("gemma"), "<end_of_turn>", "<eos>", _GEMMA, True),
    # It puts the system text in front of the first user's content.
    "gemma3": ChatFormat(_REAL.get("gemma3"), "<end_of_turn>", "<eos>", _GEMMA, True),
    "chatml": ChatFormat(CHATML, "<|im_end|>", "<|im_end|>", _CHATML, False),
    # With a system turn of its own where the messages bring none.
    "qwen2": ChatFormat(_REAL.get("qwen2_5"), "<|im_end|>", "<|im_end|>", _CHATML, False),
    # The answer to the last question gets a reasoning block, an empty one if it has none; from earlier answers the reasoning
    # is dropped. So the text of an answer depends on what follows it.
    "qwen3": ChatFormat(_REAL.get("qwen3"), "<|im_end|>", "<|im_end|>", _CHATML, False),
    "mistral": ChatFormat(MISTRAL, "</s>", "</s>", _INST, True),
    "mistral_v1": ChatFormat(MISTRAL_V1, "</s>", "</s>", ("</s>",), True),
    "mistral_tekken": ChatFormat(MISTRAL_TEKKEN, "</s>", "</s>", _INST, True),
    "zephyr": ChatFormat(ZEPHYR, "</s>", "</s>", ("</s>",), False),
    "plain_no_eot": ChatFormat(PLAIN_NO_EOT, None, None, (), False),
    "dated": ChatFormat(DATED, "<|im_end|>", "<|im_end|>", _CHATML, False),
}
FORMATS = {name: form for name, form in FORMATS.items() if form.template is not None}  # without TRL some are missing

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
