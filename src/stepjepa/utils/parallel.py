"""Work in several processes: a function over a stream of arguments on this machine, and training in a Ray cluster.

The cluster is the one in RAY_ADDRESS, or one that runs on this machine, or one that Ray starts here for the duration of the
command. All machines of the cluster need the library, and the command's files under the same paths.
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
# How many times a Ray task is started again after its process was lost.
RETRIES = 3

# The function of a worker process.
_function: Callable[[Any], Any]


def mapped(
    function: Callable[[Argument], Result],
    arguments: Iterable[Argument],
    processes: int,
    option: str,
) -> Iterator[Result]:
    """Like `map`, but in several processes; in this process if `processes` is 1, and on Windows.

    The arguments may be endless: at most two for each process are read ahead of the results.

    Args:
        function: sent to every process once; arguments and results are sent one by one.
        option: name of the option with the number of processes, for messages.

    Raises:
        DataError: a process was killed. An error of `function` is raised in place of the result of its argument.
    """
    # Windows lacks the signal masks below.
    if processes == 1 or os.name == "nt":
        yield from map(function, arguments)
        return
    # The function is passed in a file: a process reads its start arguments only after its imports, so that with a function
    # among them the pool would start the processes one after the other.
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
            what = f"a worker process was killed (memory may have run out): try a smaller {option}"
            raise DataError(
                f"{what}; a script must make the call under if __name__ == '__main__'"
            ) from None
        finally:
            pool.end(at_once=not exhausted)


class _WorkerPool(ProcessPoolExecutor):
    """A pool whose processes do not receive Ctrl-C, which the terminal sends to all processes of a command."""

    def submit(
        self, function: Callable[..., Result], /, *arguments: Any, **more: Any
    ) -> Future[Result]:
        """Submit a call, which may start a process."""
        with _uninterrupted():
            return super().submit(function, *arguments, **more)

    def end(self, at_once: bool) -> None:
        """Stop the processes and wait for them: after their current work, or `at_once`, because a call may take minutes and
        its result is no longer needed."""
        # An interruption in between could leave processes that wait for work forever.
        with _uninterrupted():
            for process in list((self._processes or {}).values()) if at_once else ():
                process.kill()
            self.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block SIGINT within this context. A process that starts here inherits the block and never receives it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(file: Path) -> None:
    global _function
    parent = cast("Any", multiprocessing.parent_process()).sentinel
    threading.Thread(target=lambda: wait([parent]) and os._exit(1), daemon=True).start()
    _function = pickle.loads(file.read_bytes())
    # Imported modules are never freed, so the garbage collector need not visit them.
    gc.freeze()


def _call(argument: Any) -> Any:
    return _function(argument)


# Ray


def connect() -> ModuleType:
    """The module `ray`, connected. Raises ConfigError if it is not installed, or the cluster cannot be reached."""
    # By default, Ray tries for a quarter of an hour to reach a cluster.
    os.environ.setdefault("RAY_NUM_REDIS_GETRETRIES", "2")
    ray = library("ray", "ray")
    if not ray.is_initialized():
        try:
            ray.init(logging_level="warning")
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "on this machine")
            raise ConfigError(f"cannot connect to the Ray cluster {where}: {said(error)}") from None
    return ray


@contextmanager
def plain_errors() -> Iterator[None]:
    """Within this context, errors of the work are raised unchanged, and errors of Ray as a `RunError`."""
    errors = library("ray.exceptions", "ray")
    try:
        yield
    except errors.RayTaskError as error:
        raise error.cause from None
    except errors.RayError as error:
        raise RunError(f"Ray: {said(error)}") from None


def enter(folder: str) -> None:
    """Change to a folder, if this machine has it."""
    with suppress(OSError):
        os.chdir(folder)


def in_workers(work: Callable[[], Result], count: int, option: str, resumes: bool) -> Result:
    """The result of `work` in the first process of a TorchTrainer. If `work` `resumes`, all processes are started again
    after one fails, unless the failure is a user mistake.

    Raises:
        ConfigError: the cluster is too small. Errors of `work` are raised unchanged.
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

    # Ray's patch of print would print every line twice.
    os.environ["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"
    scaling = train.ScalingConfig(num_workers=count, use_gpu=kind == "GPU")
    # Ray replaces the handler of Ctrl-C, and does not restore it.
    interrupted = signal.getsignal(signal.SIGINT)
    with TemporaryDirectory() as records:
        run, left = train.RunConfig(storage_path=records), RETRIES * resumes
        trainer = library("ray.train.torch", "ray").TorchTrainer
        while True:
            try:
                return cast(
                    "Result",
                    trainer(loop, scaling_config=scaling, run_config=run).fit().return_value,
                )
            except train.TrainingFailedError as error:
                # Ray may wrap the original error in one of its own.
                failures = getattr(error, "worker_failures", {}).values()
                causes = (getattr(failure, "_base_exc", failure) for failure in failures)
                cause = next((cause for cause in causes if isinstance(cause, StepJepaError)), None)
                if not left or (cause is not None and cause.status == StepJepaError.status):
                    raise cause or RunError(f"Ray: {said(error)}") from None
                left -= 1
            except SystemExit:
                # Ray exits this way after Ctrl-C.
                raise KeyboardInterrupt from None
            finally:
                if signal.getsignal(signal.SIGINT) is not interrupted:
                    signal.signal(signal.SIGINT, interrupted)
