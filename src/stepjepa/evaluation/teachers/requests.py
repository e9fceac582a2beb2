"""What goes to a teacher and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """One attempt at one question.

    Attributes:
        row: number of the question's row.
        messages: the chat up to where the teacher answers.
        temperature: 0 is greedy.
        seed: of the sampling, see `seed_of`.
    """

    row: int
    messages: list[dict[str, str]]
    temperature: float
    seed: int


@dataclass(frozen=True)
class Reply:
    """What the teacher said.

    Attributes:
        row: that of the request.
        text: the response; empty where the request was refused.
        stopped: True when the teacher ended by itself, False when it was cut off.
        prompt_tokens, new_tokens: counts, 0 where they are unknown.
        refused: why this one request cannot be answered (a prompt that is too long, a content filter).
        reasoning: thoughts that a server returns apart from the response.
    """

    row: int
    text: str
    stopped: bool = True
    prompt_tokens: int = 0
    new_tokens: int = 0
    refused: str | None = None
    reasoning: str | None = None


class Teacher(Protocol):
    """Whatever answers requests."""

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Answer all requests but those of the rows in `done`, a group at a time and in any order.

        A group is stored as a whole, or asked for again. `done` is given apart, so that a teacher that forms batches
        can form the same ones when it goes on in the middle.
        """
        ...


def seed_of(seed: int, *parts: int) -> int:
    """A seed below 2**31 for (seed, row, attempt) or any other numbers, unlike those of all others."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def mended(text: str) -> str:
    """A response without halves of characters, which no file could hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def tidy(text: str) -> str:
    """A response without white space around it and halves of characters."""
    return mended(text).strip()
