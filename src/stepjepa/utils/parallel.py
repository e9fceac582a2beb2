"""Work in several processes of this machine: a function over a stream of arguments."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryFile
from typing import Any, TypeVar, cast

from stepjepa.errors import DataError

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_function: Callable[[Any], Any]  # of a worker process


def mapped(
    function: Callable[[Argument], Result],
    arguments: Iterable[Argument],
    processes: int,
    option: str,
) -> Iterator[Result]:
    """As `map`, in several processes; one process, as on Windows, is this one.

    The arguments may be without end: no more than two for each process are ahead of what was taken.

    Args:
        function: is sent to every process once, arguments and results one by one.
        option: names the number of processes in messages.

    Raises:
        DataError: a process was killed. What `function` raises comes with its argument's turn.
    """
    if processes == 1 or os.name == "nt":  # Windows has not what follows
        yield from map(function, arguments)
        return
    # In a file without a name: what a process is started with it reads after its imports, and no other starts before.
    with TemporaryFile(buffering=0) as sent:
        sent.write(pickle.dumps(function))
        given = Connection(os.dup(sent.fileno()), writable=False)
        pool = WorkerPool(processes, multiprocessing.get_context("spawn"), _begin, (given,))
        exhausted = False
        try:
            yield from _in_turn(partial(pool.submit, _call), arguments, processes, Future.result)
            exhausted = True
        except BrokenProcessPool:
            what = f"a worker process was killed (the memory may have been full): try a smaller {option}"
            raise DataError(f"{what}; a script must start under if __name__ == '__main__'") from None
        finally:
            pool.end(at_once=not exhausted)


class WorkerPool(ProcessPoolExecutor):
    """Of an interruption, which reaches all processes, only the first one hears."""

    def submit(self, function: Callable[..., Result], /, *arguments: Any, **more: Any) -> Future[Result]:
        """May start a process."""
        with _uninterrupted():
            return super().submit(function, *arguments, **more)

    def end(self, at_once: bool) -> None:
        """End the processes and wait for that: after what they work at, or `at_once`, since an argument may take minutes and
        its result is not wanted any more."""
        with _uninterrupted():  # or the processes could wait for ever for work
            for process in list((self._processes or {}).values()) if at_once else ():
                process.kill()
            self.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Within this context an interruption has to wait; a process that starts here never hears of one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(other: Connection | int) -> None:
    """End this process at once when another one ends, or the other end of a pipe is closed: a sentinel, a connection."""
    threading.Thread(target=lambda: wait([other]) and os._exit(1), daemon=True).start()


def twice(items: Iterable[Argument]) -> tuple[Iterator[Argument], Iterator[Argument]]:
    """The items, and once more for one who follows and stops in time. `itertools.tee` would hold up to 57 for longer."""
    held = deque[Argument]()

    def ahead() -> Iterator[Argument]:
        for item in items:
            held.append(item)
            yield item

    return ahead(), iter(held.popleft, None)


def _in_turn(
    start: Callable[[Any], Any], arguments: Iterable[Any], processes: int, result: Callable[[Any], Any]
) -> Iterator[Any]:
    """The results of work that is started for each argument, two ahead for each process: they do not pile up in memory."""
    waiting = deque[Any]()
    for argument in arguments:
        waiting.append(start(argument))
        if len(waiting) > 2 * processes:
            yield result(waiting.popleft())
    while waiting:
        yield result(waiting.popleft())


def _begin(sent: Connection) -> None:
    global _function
    end_with(cast("Any", multiprocessing.parent_process()).sentinel)
    _function = pickle.loads(os.pread(sent.fileno(), os.fstat(sent.fileno()).st_size, 0))
    gc.freeze()  # what is imported stays: no collection looks through it


def _call(argument: Any) -> Any:
    return _function(argument)
