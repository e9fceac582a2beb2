"""A function over a stream of arguments in several processes, with the results in the arguments' order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Literal, TypeVar

from stepjepa.errors import DataError
from stepjepa.utils.cluster import Copies

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Engine = Literal["processes", "ray"]

_function: Callable[[Any], Any]  # of a worker process


def mapped(
    function: Callable[[Argument], Result],
    arguments: Iterable[Argument],
    processes: int,
    option: str,
    engine: Engine = "processes",
) -> Iterator[Result]:
    """As `map`, in several processes; one process is this one.

    The arguments may be without end: no more than two for each process are ahead of what was taken.

    Args:
        function: is sent to every process once, arguments and results one by one.
        option: names the number of processes in messages.
        engine: where they are; those of Ray are replaced where they are lost.

    Raises:
        ConfigError: Ray cannot be used.
        DataError: a process was killed. What `function` raises comes with its argument's turn.
        RunError: processes of Ray were lost too often.
    """
    if engine == "ray":
        yield from Copies(function, processes, option).map(arguments)
        return
    if processes == 1:
        yield from map(function, arguments)
        return
    waiting: deque[Future[Result]] = deque()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=(function,))
    try:
        for argument in arguments:
            waiting.append(pool.submit(_call, argument))
            if len(waiting) > 2 * processes:  # so that arguments do not pile up in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            f"a worker process was killed (the memory may have been full): try a smaller {option}; a script must start "
            "under if __name__ == '__main__'"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is for the parent to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _call(argument: Any) -> Any:
    return _function(argument)
