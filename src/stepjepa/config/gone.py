"""The option values that earlier versions accepted, and what replaces each of them."""

from __future__ import annotations

_TASK = "the built-in tasks are arithmetic, path_star and a5; your own rows go into train_file"
# Texts that several values share. `{}` stands for the regular expression that splits as the removed value did.
_PATTERN = (
    "name the words or titles that open a step, as in --step_splitter regex --step_separator '{}'"
)
# Option -> removed value -> what to do instead. `Option.read` and `Option.check` put it into their error.
GONE = {
    "step_splitter": {
        "connectives": _PATTERN.format("^(First|Next|Then|Finally)\\b"),
        "headings": _PATTERN.format("^#{1,3} "),
    },
    "format": {
        "gsm8k_socratic": "use gsm8k: each line 'sub-question ** step' is kept as one step",
        "chats": "leave the format out: chats are recognised",
        "implicit_cot": "write each line 'question||steps #### answer' as a JSON object with question and answer",
    },
    "metric": {
        "code_execution": "use tasks of the lm-evaluation-harness, as in --harness mbpp,humaneval",
        **dict.fromkeys(
            ("rouge", "bleu"),
            "call the package from your own function: --metric FILE.py:FUNCTION",
        ),
    },
    "task": dict.fromkeys(("shortest_path", "s5", "countdown"), _TASK),
}


def replacement(option: str, value: object) -> str | None:
    """What replaces a value that the option no longer accepts; None for any other value."""
    return GONE.get(option, {}).get(value) if isinstance(value, str) else None
