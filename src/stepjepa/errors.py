"""Errors that the user can mend.

Their message is all that the command line prints, so it says what is wrong, where (file, line, row, flag),
and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class StepJepaError(Exception):
    """Base of all errors whose cause lies in the user's data, options or files."""

    status = 2  # exit status of the command


class DataError(StepJepaError):
    """The data cannot be read or used as it is."""


def no_rows(name: str) -> DataError:
    """The error for a file or data set without a row."""
    return DataError(f"{name}: the file or data set is empty; it needs at least one row")


class RowError(DataError):
    """A row that cannot be used. `reason` is a short key for counting; the message says what is wrong."""

    def __init__(self, reason: str, message: str):
        super().__init__(reason, message)  # both, so that it can be sent to another process
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])


class ConfigError(StepJepaError):
    """An option has a value that cannot be used, or does not exist."""


class RunError(StepJepaError):
    """Nothing was wrong with the options or the data, and something broke: a loss that is not finite, the network, a
    full disk, too little memory."""

    status = 1


def said(error: BaseException, lines: int | None = None) -> str:
    """What an error says in its first `lines`, or all, in one line; its type where that is nothing."""
    return " ".join(" ".join(str(error).strip().splitlines()[:lines]).split()) or type(error).__name__


def attempted(call: Callable[..., Result], *arguments: object) -> Result | RowError:
    """What a call gives, or the RowError that it raises."""
    try:
        return call(*arguments)
    except RowError as error:
        return error
