"""Work in processes of a Ray cluster: of the one that RAY_ADDRESS names or that runs on this machine, else of one that Ray
starts here for the time of the command. Its machines have the library, and see the command's files under the same paths.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from types import ModuleType
from typing import Any

from stepjepa.errors import ConfigError, RunError
from stepjepa.utils.failures import library

RETRIES = 3  # of a call whose process was lost


def connect() -> ModuleType:
    """The module `ray`, connected. Raises ConfigError: it is not installed, or the cluster cannot be reached."""
    os.environ.setdefault(
        "RAY_NUM_REDIS_GETRETRIES", "2"
    )  # by default it takes a quarter of an hour to find no cluster
    ray = library("ray", "ray")
    if not ray.is_initialized():
        try:
            ray.init(logging_level="warning")
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "on this machine")
            raise ConfigError(f"the Ray cluster {where}: {' '.join(str(error).split())[:300]}") from None
    return ray


@contextmanager
def plain_errors() -> Iterator[None]:
    """Within this context, what the work has raised is raised as it was, and what Ray raises is a `RunError`."""
    errors = library("ray.exceptions", "ray")
    try:
        yield
    except errors.RayTaskError as error:
        raise error.cause from None
    except errors.RayError as error:
        raise RunError(f"Ray: {' '.join(str(error).split())[:400]}") from None


def enter(folder: str) -> None:
    """Work in a folder, where this machine has it."""
    with suppress(OSError):
        os.chdir(folder)


class Copies:
    """Copies of a function, each in a process of its own with a CPU core and, with `gpus`, a GPU where the cluster has some.

    A process that is lost is replaced, and its work done again. `option` names `count` in messages.

    Raises:
        ConfigError: Ray cannot be used, or the cluster is too small.
    """

    def __init__(self, function: Callable[..., Any], count: int, option: str, gpus: bool = False):
        self._ray = ray = connect()
        there = ray.cluster_resources()
        kind = "GPU" if gpus and "GPU" in there else "CPU"
        if there[kind] < count:
            raise ConfigError(f"--{option} {count}: the Ray cluster has {there[kind]:g} {kind}s")
        each = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "max_restarts": -1, "max_task_retries": RETRIES}
        self._held = [ray.put(function)]  # sent once, and there for as long as a copy may have to be replaced
        self._copies = [ray.remote(_Copy).options(**each).remote(self._held, os.getcwd()) for _ in range(count)]

    def __call__(self, *arguments: Any) -> Any:
        """What the first one makes of the arguments. Raises RunError: its process was lost too often."""
        with plain_errors():
            return self._ray.get(self._copies[0].call.remote(*arguments))

    def map(self, arguments: Iterable[Any]) -> Iterator[Any]:
        """As `map`, with two arguments for each copy ahead. Raises RunError: a process was lost too often."""
        waiting, turn = deque[Any](), cycle(self._copies)
        with plain_errors():
            for argument in arguments:
                waiting.append(next(turn).call.remote(argument))
                if len(waiting) > 2 * len(self._copies):
                    yield self._ray.get(waiting.popleft())
            yield from map(self._ray.get, waiting)


class _Copy:
    def __init__(self, held: list[Any], folder: str):
        enter(folder)
        self._function = library("ray", "ray").get(held[0])

    def call(self, *arguments: Any) -> Any:
        return self._function(*arguments)
