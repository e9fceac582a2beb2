"""Work in several processes: a function over a stream of arguments on this machine, and training in a Ray cluster.

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
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, TypeVar, cast

from stepjepa.errors import ConfigError, DataError, RunError, StepJepaError, library, said

Argument = TypeVar("Argument")
Result = TypeVar("Result")
RETRIES = 3  # of a Ray task whose process was lost

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
    # In a file: what a process is started with it reads after its imports, and no other starts before.
    with TemporaryDirectory() as folder:
        file = Path(folder, "function")
        file.write_bytes(pickle.dumps(function))
        pool = _WorkerPool(processes, multiprocessing.get_context("spawn"), _begin, (file,))
        exhausted = False
        try:
            waiting = deque[Future[Result]]()
            for argument in arguments:
                waiting.append(pool.submit(_call, argument))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            exhausted = True
        except BrokenProcessPool:
            what = f"a worker process was killed (the memory may have been full): try a smaller {option}"
            raise DataError(f"{what}; a script must start under if __name__ == '__main__'") from None
        finally:
            pool.end(at_once=not exhausted)


class _WorkerPool(ProcessPoolExecutor):
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def twice(items: Iterable[Argument]) -> tuple[Iterator[Argument], Iterator[Argument]]:
    """The items, and once more for one who follows and stops in time. `itertools.tee` would hold up to 57 for longer."""
    held = deque[Argument]()

    def ahead() -> Iterator[Argument]:
        for item in items:
            held.append(item)
            yield item

    return ahead(), iter(held.popleft, None)


def _begin(file: Path) -> None:
    global _function
    parent = cast("Any", multiprocessing.parent_process()).sentinel
    threading.Thread(target=lambda: wait([parent]) and os._exit(1), daemon=True).start()
    _function = pickle.loads(file.read_bytes())
    gc.freeze()  # what is imported stays: no collection looks through it


def _call(argument: Any) -> Any:
    return _function(argument)


# Ray


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


def in_workers(work: Callable[[], Result], count: int, option: str, resumes: bool) -> Result:
    """What `work` gives in the first of the processes of a TorchTrainer. If it `resumes`, all begin again where one fails,
    but for a mistake of the user's.

    Raises:
        ConfigError: the cluster is too small. What `work` raises is raised as it was.
        KeyboardInterrupt: Ray was interrupted.
        RunError: a process was lost too often.
    """
    resources = connect().cluster_resources()
    kind = "GPU" if "GPU" in resources else "CPU"
    if resources[kind] < count:
        raise ConfigError(f"--{option} {count}: the Ray cluster has {resources[kind]:g} {kind}s")
    train, folder = library("ray.train", "ray"), os.getcwd()

    def loop() -> Result:
        enter(folder)
        return work()

    os.environ["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"  # which prints every line twice
    scaling = train.ScalingConfig(num_workers=count, use_gpu=kind == "GPU")
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
                cause = next((one for one in causes if isinstance(one, StepJepaError)), None)
                if not left or (cause is not None and cause.status == StepJepaError.status):
                    raise cause or RunError(f"Ray: {said(error)}") from None
                left -= 1
            except SystemExit:  # of Ray, when it is interrupted
                raise KeyboardInterrupt from None
            finally:
                if signal.getsignal(signal.SIGINT) is not interrupted:
                    signal.signal(signal.SIGINT, interrupted)
