"""Errors that the user can mend.

Their message is all that the command line prints, so it says what is wrong, where (file, line, row, flag),
and what to do about it.
"""

from __future__ import annotations


class StepJepaError(Exception):
    """Base of all errors whose cause lies in the user's data, options or files."""

    status = 2  # exit status of the command


class DataError(StepJepaError):
    """The data cannot be read or used as it is."""


class ConfigError(StepJepaError):
    """An option has a value that cannot be used, or does not exist."""


class RunError(StepJepaError):
    """Nothing was wrong with the options or the data, and something broke: a loss that is not finite, the network, a
    full disk, too little memory."""

    status = 1
