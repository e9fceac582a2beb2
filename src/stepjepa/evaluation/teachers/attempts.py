"""The file of attempts: a line each, in groups that count as a whole or not at all."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stepjepa.errors import DataError
from stepjepa.evaluation.teachers.files import json_line
from stepjepa.utils.files import parse_json


@dataclass(frozen=True)
class Attempt:
    """One attempt and what came of it.

    Attributes:
        row, attempt: which question, and the number of the try, from 1.
        verdict: ``right``, ``wrong``, ``no_answer``, ``truncated`` or ``refused``.
        final_answer: what the response ends in, None without one.
    """

    row: int
    attempt: int
    verdict: str
    response: str
    final_answer: str | None
    stopped: bool
    prompt_tokens: int
    new_tokens: int
    refused: str | None = None
    reasoning: str | None = None


@dataclass
class Standing:
    """Where a question stands after its attempts so far."""

    attempts: int
    verdict: str
    place: tuple[int, int]  # start and length of its last attempt in the file of attempts


def group_lines(attempts: Sequence[Attempt]) -> list[bytes]:
    """The lines of a group; each says how many of the group follow."""
    last = len(attempts) - 1
    return [json_line({**asdict(one), "left": last - index}) for index, one in enumerate(attempts)]


def read_line(line: bytes) -> tuple[Attempt, int]:
    """The attempt in a line, and how many of its group follow.

    Raises:
        ValueError, KeyError, TypeError or AttributeError: it holds none.
    """
    values = parse_json(line)
    left = int(values.pop("left"))
    return Attempt(**values), left


def read_groups(path: Path, rows: Container[int]) -> Iterator[tuple[list[Attempt], list[int]]]:
    """The groups in a file whose last line is there, with the lengths of their lines in bytes.

    Args:
        rows: what the questions' rows are.

    Raises:
        DataError: a line is broken and not the last one, or is about another row.
    """
    group: list[Attempt] = []
    lengths: list[int] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                one, left = read_line(line)
                if one.row not in rows:
                    raise ValueError(one.row)
            except (ValueError, KeyError, TypeError, AttributeError):
                if _only_zeros(line, file):  # space that a crash has left unwritten
                    return
                raise DataError(
                    f"{path} line {number}: broken, so the run cannot go on; --overwrite begins anew"
                ) from None
            group.append(one)
            lengths.append(len(line))
            if left == 0:
                yield group, lengths
                group, lengths = [], []


def _only_zeros(line: bytes, rest: Iterable[bytes]) -> bool:
    return not line.strip(b"\0\n") and all(not more.strip(b"\0\n") for more in rest)
