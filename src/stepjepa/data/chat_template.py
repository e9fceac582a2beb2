"""The chat template of a tokenizer: which it is, what may be passed to it, and the day that it believes it is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from stepjepa.errors import ConfigError

# Templates such as Llama 3.2's write today's date into the system header; a fixed one keeps two runs equal.
DEFAULT_DATE = "26 Jul 2024"
_DEFAULT_DAY = datetime(2024, 7, 26)
_DIRECTIVES = "%A %a %B %b %d %e %F %H %I %j %M %m %p %S %T %Y %y %-d %-H %-I %-j %-M %-m %-S".split()

# The arguments of `apply_chat_template` that are not the template's.
_RESERVED = {
    *("conversation", "conversations", "messages", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("tokenize", "tokenizer_kwargs", "sanitize_control_tokens", "padding", "truncation", "max_length"),
    *("return_tensors", "return_dict", "return_assistant_tokens_mask"),
}


def check_template_kwargs(names: Iterable[str]) -> None:
    """Make sure that only what the template reads is passed to it.

    Raises:
        ConfigError: a name that stands for something else.
    """
    taken = sorted(_RESERVED.intersection(names))
    if taken:
        raise ConfigError(
            f"chat_template_kwargs: {', '.join(taken)} cannot be set; give what the chat template reads, such as "
            "enable_thinking"
        )


def template_of(tokenizer: Any) -> str:
    """The text of the tokenizer's chat template.

    Raises:
        ConfigError: there is none, or none among several that is the default, or the tokenizer uses none.
    """
    name = getattr(tokenizer, "name_or_path", "") or "this model"
    try:
        return tokenizer.get_chat_template()
    except NotImplementedError:  # mistral-common's
        raise ConfigError(
            f"the tokenizer of {name} ({type(tokenizer).__name__}) uses no chat template and reads control tokens in a text "
            "as plain text; load the other kind: AutoTokenizer.from_pretrained(..., mistral_format=False)"
        ) from None
    except ValueError as error:
        if tokenizer.chat_template:
            raise ConfigError(f"the tokenizer of {name} has several chat templates: {error}") from None
        raise ConfigError(
            f"the tokenizer of {name} has no chat template; "
            "give one with --chat_template FILE, or use the instruction-tuned model's tokenizer"
        ) from None


def with_pinned_day(template: str) -> str:
    """The template with a `strftime_now` of its own in front, which writes `DEFAULT_DATE` in place of today's date."""
    day = "format"
    for directive in _DIRECTIVES:
        day += f" | replace({directive!r}, {_DEFAULT_DAY.strftime(directive)!r})"
    return f"{{% macro strftime_now(format) %}}{{{{ {day} }}}}{{% endmacro +%}}{template}"
