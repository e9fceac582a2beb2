"""The text before an answer: where the text that the model writes begins, and which prompt the model is asked with.

A chat template writes a chat in one way and asks for an answer in another, and the two need not agree:

    generation prompt   <|user|>Q<|end|><|assistant|><think>
    rendered chat       <|user|>Q<|end|><|assistant|><|final|>A<|end|>
                                                     |        |
                                        the opening begins    the answer's text

What follows the common text is `Opening.written` in the chat, which the model has to write itself and is trained on, and
`Opening.extra` in the generation prompt, without which the model is asked for what it was trained on.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.columns import REASONING, is_trained
from stepjepa.data.counts import Counts
from stepjepa.data.options import DataOptions, PromptOptions
from stepjepa.utils.text import counted

_NAME = Names(DataOptions, PromptOptions)
_UNFINISHED_TAG = re.compile(r"<[^<>\s]*$")
_QUOTED = 60  # characters of a text that a message quotes


class Opening(NamedTuple):
    """How the text before an answer differs from the generation prompt for the same messages.

    Attributes:
        written: what the template writes between the common text and the answer's text.
        extra: how the generation prompt goes on after the common text; empty where the chat has that text too.
        quoted: the last characters of the common text.
        apart: whether the two differ before the end of the last message; then `written` and `extra` are empty.
    """

    written: str = ""
    extra: str = ""
    quoted: str = ""
    apart: bool = False


def opening_of(text: str, answer: int, last_message: int, prompt: str) -> Opening:
    """The opening of an answer.

    Args:
        text: the rendered chat.
        answer: where the answer's text begins in it.
        last_message: where the content of the message before the answer ends.
        prompt: the generation prompt for the messages before the answer.
    """
    common = len(commonprefix([text, prompt]))
    if common < last_message:
        return Opening(quoted=text[:common][-_QUOTED:], apart=True)
    extra = ""
    if common < len(prompt):
        unfinished = _UNFINISHED_TAG.search(text, last_message, common)
        common = min(unfinished.start() if unfinished else common, answer)
        extra = prompt[common:]
    common = min(common, answer)
    return Opening(text[common:answer], extra, text[last_message:common][-_QUOTED:])


def left_out(content: str, shown: str) -> tuple[int, str]:
    """How many characters of a message its template leaves out, white space not counted, and the text that is missing."""
    if shown == content:
        return 0, ""
    missing = len("".join(content.split())) - len("".join(shown.split()))
    if missing <= 0:
        return 0, ""
    begin = len(commonprefix([content, shown]))
    end = len(commonprefix([content[begin:][::-1], shown[begin:][::-1]]))
    return missing, content[begin : len(content) - end]


def quoted(text: str) -> str:
    """A text in quotation marks, its beginning where it is long."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...")


class PromptWarning(NamedTuple):
    """A warning: the name of its count in `PromptCounts`, how many rows or answers of how many, what is wrong, and what to
    do."""

    name: str
    number: int
    total: int
    text: str
    advice: str


@dataclass
class PromptCounts(Counts):
    """How the answers of a data set begin, and what the chat template leaves out of them.

    Attributes:
        rows: that were counted; `answers`: of them that were compared with their generation prompt.
        written: answers before which the template writes text that the generation prompt does not have.
        opened: answers whose generation prompt has text that the chat does not have.
        endings: `Opening.extra` -> last answers, the most common ones; what a model of this data is asked without.
        left_out: rows with an answer, or thinking of it in a key of its own, of which the template leaves out a part;
            `characters_left_out` of them.
        first: name of one of these counts -> place and texts of the first such row.
        switches: name of one of these counts -> the option with which the template has no such row.
    """

    rows: int = 0
    answers: int = 0
    written: int = 0
    opened: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    characters_left_out: int = 0
    first: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)

    def count(self, place: str, messages: Sequence[Mapping[str, str]], rendered: Any, switch: _Switch) -> None:
        """Count the answers of a chat that are trained.

        Args:
            rendered: the chat as a `RenderedChat`.
            switch: see `ChatRenderer.switch`.
        """
        self.rows += 1
        answers = [message for message in messages if message["role"] == "assistant"]
        last = ""
        for message, opening in zip(answers, rendered.openings, strict=True):
            if opening is None or not is_trained(message):
                continue
            self.answers += 1
            if opening.written.strip() and REASONING not in message:
                self.written += 1
                self._note("written", f"{place}: {quoted(opening.written)}", messages, switch)
            if opening.apart or opening.extra.strip():
                self.opened += 1
                prompt = quoted(opening.quoted + opening.extra)
                self._note("opened", f"{place}: {quoted(opening.quoted)} and {prompt}", messages, switch)
            last = opening.extra
        self.endings[last] += 1
        if rendered.characters_left_out:
            self.left_out += 1
            self.characters_left_out += rendered.characters_left_out
            self._note("left_out", f"{place}: {quoted(rendered.left_out)}", messages, switch)

    def _note(self, name: str, first: str, messages: Sequence[Mapping[str, str]], switch: _Switch) -> None:
        """Keep the first row of a count, and the template's switch for it."""
        if name not in self.first:
            self.first[name] = first
            self.switches[name] = switch(name, messages)

    def lines(self, warnings: bool = True) -> list[str]:
        """What is trained on that the generation prompt does not have, and the warnings, one fact a line."""
        lines = []
        if self.written:
            switch = self.switches["written"]
            remedy = f"; {switch} puts it into the prompt" if switch else ""
            lines.append(
                f"before {self._share(self.written)} the template writes text that its generation prompt does not have; it "
                f"is trained on as the beginning of the answer{remedy} (first: {self.first['written']})"
            )
        if warnings:
            lines += [f"warning: {one.text}; {one.advice}" for one in self.warnings()]
        return lines

    def warnings(self) -> list[PromptWarning]:
        """What differs between training and use, or is missing in training."""
        found = []
        if self.opened:
            text = (
                f"the text before {self._share(self.opened)} is not what the template asks with (first, in training and in "
                f"the generation prompt: {self.first['opened']})"
            )
            switch = f"train on answers with their thinking, or give another --{_NAME.chat_template}"
            if not any(ending.strip() for ending in self.endings):  # those of earlier turns alone
                switch = f"--{_NAME.train_on} last trains the last answers alone"
            advice = (
                f"evaluate and generate ask for a last answer as in training (--{_NAME.prompt_from} training), others do "
                f"not: {self.switches['opened'] or switch}"
            )
            found.append(PromptWarning("opened", self.opened, self.answers, text, advice))
        if self.left_out:
            rows, size = counted(self.left_out, "row"), counted(self.characters_left_out, "character")
            first = self.first["left_out"]
            text = f"the template leaves out part of the answer in {rows}, {size} in all (first: {first})"
            switch = (
                f"give a --{_NAME.chat_template} that keeps it, or write thinking of a key of its own into the content, as "
                "<think>...</think>"
            )
            advice = f"the model is not trained on it: {self.switches['left_out'] or switch}"
            found.append(PromptWarning("left_out", self.left_out, self.rows, text, advice))
        return found

    def _share(self, answers: int) -> str:
        return f"{answers:,} of {counted(self.answers, 'answer')}"


_Switch = Callable[[str, Sequence[Mapping[str, str]]], str]


def switch_words(kwargs: Mapping[str, Any]) -> str:
    """The option that gives these values to the template."""
    return f"--{_NAME.chat_template_kwargs} '{json.dumps(kwargs)}'"


def trained_ending(counts: Iterable[Mapping[str, Any]]) -> str | None:
    """What the generation prompt has that the training data did not have, by the `PromptCounts` of a run's data sets as
    records hold them; None where they do not say."""
    endings: Counter[str] = Counter()
    for prompts in counts:
        for ending, answers in (prompts.get("endings") or {}).items():
            endings[ending] += answers
    return endings.most_common(1)[0][0] if endings else None


def recorded_ending(reports: Mapping[str, Any]) -> str | None:
    """`trained_ending` by the data reports of a run, as its ``data_report.json`` has them."""
    training = (one for name, one in reports.items() if name.startswith("train") and isinstance(one, dict))
    return trained_ending(one.get("prompts") or {} for one in training)
