"""Which system message the questions of an evaluation get."""

from __future__ import annotations

from typing import NamedTuple

from stepjepa.config.option import Names
from stepjepa.evaluation.options import AS_TRAINED, EvaluateOptions
from stepjepa.evaluation.predictions import quoted
from stepjepa.evaluation.record import TrainingRecord

_NAME = Names(EvaluateOptions)


class SystemPrompt(NamedTuple):
    """Which system message a question gets.

    Attributes:
        text: the message, None for none.
        keep: whether a row's own goes before it.
        origin: where it comes from, to be printed.
    """

    text: str | None
    keep: bool
    origin: str

    def apply(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """The chat with this system message."""
        own = messages[0]["role"] == "system"
        if own and self.keep:
            return messages
        rest = messages[1:] if own else messages
        return rest if self.text is None else [{"role": "system", "content": self.text}, *rest]

    def line(self, own: int, rows: int) -> str:
        """Which system message is used, where `own` of so many rows come with one."""
        if self.keep:
            return f"system   {self.origin}: {own} of {rows} rows have one"
        replaced = f"; it replaces the file's own in {own} of {rows} rows" if own else ""
        return f"system   {self.origin}{replaced}"


def choose_system_prompt(asked: str | None, use_test_prompts: bool, record: TrainingRecord, name: str) -> SystemPrompt:
    """Which system message the questions get, by the options and by what is known of the training of the model `name`.

    A model that was trained with one system message (or with none) gets it. One that was trained with several gets each
    row's own; rows without one get the most common one.
    """
    if use_test_prompts:
        return SystemPrompt(None, True, f"the file's own (--{_NAME.use_test_prompts})")
    if asked != AS_TRAINED:
        return SystemPrompt(asked, False, f"{quoted(asked)} (--{_NAME.system_prompt})")
    if not record.system_prompts:
        return SystemPrompt(None, True, f"the file's own, where it has one ({name} has no record of its training)")
    (common, _), *further = record.system_prompts.most_common()
    if not further and not record.others:
        return SystemPrompt(common, False, f"{quoted(common)}, as in training")
    count = f"{len(record.system_prompts)}{' and more' if record.others else ''}"
    own = f"the file's own, as in training with {count} different ones"
    return SystemPrompt(common, True, f"{own}; for rows without one {quoted(common)}")
