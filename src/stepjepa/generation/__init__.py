"""Generators: a model in memory, vLLM or a server answers chats through one protocol. `generate` collects solutions.

Everything that lets a model answer goes one way:

    rows of a file -> questions (`RowsRead`) -> `Request` -> `Generator` -> `Reply` -> `store.Output` -> scores
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stepjepa.data.report import RowCounts
from stepjepa.errors import RowError
from stepjepa.utils.files import digest

if TYPE_CHECKING:
    from stepjepa.data.sources import RowSource
    from stepjepa.data.tokens import Prompter

Asked = TypeVar("Asked")


@dataclass(frozen=True)
class Request:
    """One chat to answer.

    Attributes:
        row: number of the question.
        messages: the chat up to where the model answers.
        temperature: 0 is greedy.
        seed: of the sampling, see `seed_of`.
        template_kwargs: what the chat template gets for this chat alone.
    """

    row: int
    messages: Sequence[Mapping[str, str]]
    temperature: float
    seed: int
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What the model answered.

    Attributes:
        row: that of the request.
        text: the response; empty where the request was refused.
        stopped: True when the model ended by itself, False when it was cut off.
        prompt_tokens, new_tokens: counts, 0 where they are unknown.
        refused: why this one request cannot be answered (a prompt that is too long, a content filter).
        reasoning: thoughts that a server returns in a field of their own.
    """

    row: int
    text: str
    stopped: bool = True
    prompt_tokens: int = 0
    new_tokens: int = 0
    refused: str | None = None
    reasoning: str | None = None


class Generator(Protocol):
    """Whatever answers requests."""

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Answer all requests but those of the rows in `done`, a group at a time and in any order.

        A group is stored as a unit. `done` is an argument of its own, so that a generator that forms batches forms the same
        ones when it resumes in the middle.
        """
        ...


def seed_of(seed: int, *parts: int) -> int:
    """A seed below 2**31 for (seed, row, attempt) or any other numbers, different for all others."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def mended(text: str) -> str:
    """A response without halves of characters, which no file could hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def with_room(
    prompter: Prompter, requests: Sequence[Request], longest: int | None, done: Collection[int]
) -> tuple[dict[int, list[int]], list[Reply]]:
    """Row -> token ids of the prompts that the model has room for, and refusals of the others that are not done yet."""
    prompts = {request.row: prompter.ids(request.messages, request.template_kwargs) for request in requests}
    too_long = {} if longest is None else {row: len(ids) for row, ids in prompts.items() if len(ids) > longest}
    refused = [
        Reply(row, "", False, refused=f"the prompt has {size} tokens, and the model has room for {longest}")
        for row, size in too_long.items()
        if row not in done
    ]
    return {row: ids for row, ids in prompts.items() if row not in too_long}, refused


def text_of(value: object) -> str:
    """A cell as text: numbers are written out; empty for what is neither, and for NaN."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value != value:
        return ""
    return str(value)


@dataclass
class RowsRead(RowCounts):
    """What became of the rows of a file: each is used by a subclass, or counted as skipped."""

    def usable(
        self, rows: RowSource, make: Callable[[Any, int, int], Asked], limit: int | None = None
    ) -> Iterator[Asked]:
        """What `make` makes of each of the first `limit` rows, its index (from 0) and its number (for `RowSource.place`).

        A row for which it raises a `RowError` is counted.
        """
        for index, (number, row) in enumerate(islice(rows, limit)):
            self.rows_read += 1
            try:
                made = make(row, index, number)
            except RowError as error:
                self.skip(error, rows.place(number))
            else:
                yield made


def digest_of(values: Iterable[Any]) -> str:
    """Changes with any of the values (JSON, or written as text), or their order."""
    return digest(json.dumps(value, default=str).encode() for value in values)
