"""Prompts as a model was trained on them, and the tokens that end its answer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.chat import ChatRenderer, with_template
from stepjepa.data.options import DataOptions
from stepjepa.data.tokens import template_turn_end
from stepjepa.errors import ConfigError, RowError

_NAME = Names(DataOptions)
_PREDICTOR = re.compile(r"<\|predictor_\d+\|>")


class Prompter:
    """Turns chats into prompts of token ids.

    Attributes:
        tokenizer: the model's, a copy of it with the chat template where one is given.
        renderer: writes its chats.
        end_of_turn: the token that its template writes after an answer, None where that is no special one.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat_template: str | None = None,
        plain: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ):
        tokenizer = with_template(tokenizer, chat_template, plain)
        self.tokenizer, self.renderer = tokenizer, ChatRenderer(tokenizer, template_kwargs)
        self.end_of_turn: int | None = None
        with contextlib.suppress(RowError):
            self.end_of_turn = template_turn_end(tokenizer, self.renderer)

    def ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt of a chat that the assistant is to answer; the template writes all special tokens.

        Raises:
            ConfigError: the template refuses the chat.
        """
        try:
            text = self.renderer.prompt(messages)
        except Exception as error:  # jinja2 raises its own and the template's errors
            raise ConfigError(
                f"the chat template refuses a question: {error}; see --{_NAME.system_prompt} none"
            ) from None
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def stop_ids(self, own: int | Sequence[int] | None) -> list[int]:
        """Tokens that end a response: those that the model names, the tokenizer's EOS, the template's end of turn."""
        named = [own] if isinstance(own, int) else list(own or ())
        return sorted({*named, self.tokenizer.eos_token_id, self.end_of_turn} - {None})

    def unwritable_ids(self, rows: int) -> list[int]:
        """Tokens that no text is made of, of a model whose embedding has so many rows: rows after the tokenizer's last
        token (padding of the vocabulary, predictor tokens while training) and predictor tokens that were kept."""
        known = self.tokenizer.get_vocab()
        kept = [index for token, index in known.items() if _PREDICTOR.fullmatch(token) and index < rows]
        return sorted({*kept, *range(max(known.values(), default=-1) + 1, rows)})
