"""Out of memory, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stepjepa.errors import ConfigError

# What torch says in a plain RuntimeError where a CPU or a GPU's driver has no memory left.
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@contextmanager
def saying_out_of_memory(message: str) -> Iterator[None]:
    """Turn running out of memory into a message.

    Raises:
        ConfigError: in place of torch's errors.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise ConfigError(message) from None
    except RuntimeError as error:
        if any(words in str(error) for words in _WORDS):
            raise ConfigError(message) from None
        raise
