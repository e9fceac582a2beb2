"""Work in several processes: a function over a stream of arguments, on this machine or in a Ray cluster.

The cluster is the one that RAY_ADDRESS names or that runs on this machine, else one that Ray starts here for the time of the
command. Its machines have the library, and see the command's files under the same paths.
"""

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
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory, TemporaryFile
from types import ModuleType
from typing import Any, Literal, TypeVar, cast

from stepjepa.errors import ConfigError, DataError, RunError, StepJepaError, said
from stepjepa.utils.failures import library

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Engine = Literal["processes", "ray"]
RETRIES = 3  # of a call whose process was lost

_function: Callable[[Any], Any]  # of a worker process


def mapped(
    function: Callable[[Argument], Result],
    arguments: Iterable[Argument],
    processes: int,
    option: str,
    engine: Engine = "processes",
) -> Iterator[Result]:
    """As `map`, in several processes; one process, as on Windows, is this one.

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
    if processes == 1 or os.name == "nt":  # Windows has not what follows
        yield from map(function, arguments)
        return
    # In a file without a name: what a process is started with it reads after its imports, and no other starts before.
    with TemporaryFile(buffering=0) as sent:
        sent.write(pickle.dumps(function))
        given = Connection(os.dup(sent.fileno()), writable=False)
        pool = WorkerPool(processes, multiprocessing.get_context("spawn"), _begin, (given,))
        try:
            yield from _in_turn(partial(pool.submit, _call), arguments, processes, Future.result)
        except BrokenProcessPool:
            what = f"a worker process was killed (the memory may have been full): try a smaller {option}"
            raise DataError(f"{what}; a script must start under if __name__ == '__main__'") from None
        finally:
            with _uninterrupted():  # or the processes could wait for ever for work
                pool.shutdown(wait=True, cancel_futures=True)


class WorkerPool(ProcessPoolExecutor):
    """Of an interruption, which reaches all processes, only the first one hears."""

    def submit(self, function: Callable[..., Result], /, *arguments: Any, **more: Any) -> Future[Result]:
        """May start a process."""
        with _uninterrupted():
            return super().submit(function, *arguments, **more)


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


def connect() -> ModuleType:
    """The module `ray`, connected. Raises ConfigError: it is not installed, or the cluster cannot be reached."""
    # By default it takes a quarter of an hour to find no cluster.
    os.environ.setdefault("RAY_NUM_REDIS_GETRETRIES", "2")
    ray = library("ray", "ray")
    if not ray.is_initialized():
        try:
            ray.init(logging_level="warning")
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "on this machine")
            raise ConfigError(f"the Ray cluster {where}: {said(error)}") from None
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
        raise RunError(f"Ray: {said(error)}") from None


def enter(folder: str) -> None:
    """Work in a folder, where this machine has it."""
    with suppress(OSError):
        os.chdir(folder)


def room(count: int, option: str, gpus: bool = True) -> bool:
    """Whether `count` processes have a GPU each, where `gpus` are wanted. Raises ConfigError: the cluster is too small."""
    there = connect().cluster_resources()
    kind = "GPU" if gpus and "GPU" in there else "CPU"
    if there[kind] < count:
        raise ConfigError(f"--{option} {count}: the Ray cluster has {there[kind]:g} {kind}s")
    return kind == "GPU"


def in_workers(work: Callable[[], Result], count: int, option: str, resumes: bool) -> Result:
    """What `work` gives in the first of the processes of a TorchTrainer. If it `resumes`, all begin again where one fails,
    but for a mistake of the user's.

    Raises:
        ConfigError: see `room`. What `work` raises is raised as it was.
        KeyboardInterrupt: Ray was interrupted.
        RunError: a process was lost too often.
    """
    use_gpu, train, folder = room(count, option), library("ray.train", "ray"), os.getcwd()

    def loop() -> Result:
        enter(folder)
        return work()

    os.environ["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"  # which prints every line twice
    scaling = train.ScalingConfig(num_workers=count, use_gpu=use_gpu)
    interrupted = signal.getsignal(signal.SIGINT)  # Ray takes it over
    with TemporaryDirectory() as records:
        run, left = train.RunConfig(storage_path=records), RETRIES * resumes
        trainer = library("ray.train.torch", "ray").TorchTrainer
        while True:
            try:
                return cast("Result", trainer(loop, scaling_config=scaling, run_config=run).fit().return_value)
            except train.TrainingFailedError as error:
                # Ray may put its traceback around them.
                causes = (getattr(one, "_base_exc", one) for one in getattr(error, "worker_failures", {}).values())
                found = next((one for one in causes if isinstance(one, StepJepaError)), None)
                if not left or (found is not None and found.status == StepJepaError.status):
                    raise found or RunError(f"Ray: {said(error)}") from None
                left -= 1
            except SystemExit:  # of Ray, when it is interrupted
                raise KeyboardInterrupt from None
            finally:
                if signal.getsignal(signal.SIGINT) is not interrupted:
                    signal.signal(signal.SIGINT, interrupted)


class Copies:
    """Copies of a function, each in a process of its own with a CPU core and, with `gpus`, a GPU where the cluster has some.

    A process that is lost is replaced, and its work done again. `option` names `count` in messages.

    Raises:
        ConfigError: Ray cannot be used, or the cluster is too small.
    """

    def __init__(self, function: Callable[..., Any], count: int, option: str, gpus: bool = False):
        self._ray = ray = connect()
        of_all = count * int(os.environ.get("WORLD_SIZE", "1"))  # every process of a training has as many
        each = {"num_cpus": 1, "num_gpus": int(room(of_all, option, gpus))}
        copy = ray.remote(_Copy).options(**each, max_restarts=-1, max_task_retries=RETRIES)
        self._held = [ray.put(function)]  # sent once, and there for as long as a copy may have to be replaced
        self._copies = [copy.remote(self._held, os.getcwd()) for _ in range(count)]

    def __call__(self, *arguments: Any) -> Any:
        """What the first one makes of the arguments. Raises RunError: its process was lost too often."""
        with plain_errors():
            return self._ray.get(self._copies[0].call.remote(*arguments))

    def map(self, arguments: Iterable[Any]) -> Iterator[Any]:
        """As `map`, with two arguments for each copy ahead. Raises RunError: a process was lost too often."""
        turn = cycle(self._copies)
        with plain_errors():
            yield from _in_turn(lambda one: next(turn).call.remote(one), arguments, len(self._copies), self._ray.get)


class _Copy:
    def __init__(self, held: list[Any], folder: str):
        enter(folder)
        self._function = library("ray", "ray").get(held[0])

    def call(self, *arguments: Any) -> Any:
        return self._function(*arguments)
