"""Errors that the user can fix, and the conversion of full disks, lack of memory and missing libraries into such errors.

The command line prints only the message, which says what is wrong, where (file, line, row, flag), and what to do.
"""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

Result = TypeVar("Result")


class StepJepaError(Exception):
    """Base class of all errors that the user can fix."""

    status = 2  # exit status of the command


class DataError(StepJepaError):
    """The data cannot be read or used."""


def no_rows(name: str) -> DataError:
    """The error for a file or data set without rows."""
    return DataError(f"{name}: the file or data set is empty; it needs at least one row")


class RowError(DataError):
    """A row that cannot be used. `reason` is a short key for counting."""

    def __init__(self, reason: str, message: str):
        # Unpickling, as in another process, calls the constructor with the arguments of the base class.
        super().__init__(reason, message)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])


class ConfigError(StepJepaError):
    """An option does not exist, or its value cannot be used."""


class RunError(StepJepaError):
    """A failure with valid options and data: a loss that is not finite, the network, a full disk, too little memory."""

    status = 1


def said(error: BaseException, lines: int | None = None) -> str:
    """The first `lines` lines of an error's message (None for all), joined into one; its type if the message is empty."""
    return (
        " ".join(" ".join(str(error).strip().splitlines()[:lines]).split()) or type(error).__name__
    )


def attempted(call: Callable[..., Result], *arguments: object) -> Result | RowError:
    """The result of a call, or the RowError that it raises."""
    try:
        return call(*arguments)
    except RowError as error:
        return error


# System failures

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# safetensors and tokenizers put the system's error number into their messages; torch.save only says that its writer failed.
_FULL_TEXTS = (
    *(f"os error {number}" for number in _FULL),
    "PytorchStreamWriter failed writing",
    "unexpected pos ",
    "iostream error",
)
_MEMORY_TEXTS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def why_not_written(error: BaseException) -> str | None:
    """``No space left on device`` or similar for a full disk, quota or file size limit; None for any other error."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in _FULL else None
    text = str(error)
    if not any(part in text for part in _FULL_TEXTS):
        return None
    named = (os.strerror(number) for number in _FULL if f"os error {number}" in text)
    return next(named, "the disk is full, or a quota is used up")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on a device."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    failed = isinstance(error, RuntimeError) and any(part in str(error) for part in _MEMORY_TEXTS)
    return failed or isinstance(error, MemoryError)


@contextmanager
def writing(what: str | os.PathLike[str], then: str) -> Iterator[None]:
    """Within this context, a full disk raises a `RunError` that says what could not be written, why, and what to do."""
    try:
        yield
    except Exception as error:
        reason = why_not_written(error)
        if reason is None:
            raise
        raise RunError(
            f"{os.fspath(what)}: could not be written ({reason}); free some space, then {then}"
        ) from error


@contextmanager
def explaining(lower: str, then: str) -> Iterator[None]:
    """Within this context, a full disk or running out of memory raises a one-line `RunError`.

    Args:
        lower: the option to lower so that less memory is used.
        then: how to resume the command afterwards.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        with writing(getattr(error, "filename", None) or "a file", then):
            if not is_out_of_memory(error):
                raise
        reason = said(error, lines=1)[:200]
        raise RunError(f"out of memory ({reason}); lower {lower}, then {then}") from error


@contextmanager
def saying_out_of_memory(message: str) -> Iterator[None]:
    """Within this context, running out of memory raises a `ConfigError` with this message."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(message) from None


def library(name: str, extra: str) -> ModuleType:
    """Import an optional module, which ``pip install 'stepjepa[extra]'`` installs.

    Raises:
        ConfigError: the module, or one that it imports, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise ConfigError(
            f"this needs {missing}, which is not installed; install it with: pip install 'stepjepa[{extra}]'"
        ) from None
