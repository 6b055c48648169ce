"""Jobs of a sweep in other processes of this machine or on a Dask cluster, by one path.

Each of them is an executor of :mod:`concurrent.futures`. Jobs of a worker that is lost are given to others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

from joulecast.errors import InputError
from joulecast.threads import use_one_thread

T = TypeVar("T")

#: Arguments of jobs by number.
Jobs = Mapping[int, tuple[Any, ...]]

#: How often jobs are given out again before a sweep gives up.
MOST_LOSSES = 5
#: How long a scheduler may take to answer [s].
CONNECT_S = 10.0


class Workers:
    """Where jobs run: as a context manager it ends what it has started.

    Parameters
    ----------
    processes
        Processes on this machine; 1 is this one.
    dask
        Address of a Dask scheduler, in place of processes.
    """

    def __init__(self, processes: int = 1, dask: str | None = None) -> None:
        if processes < 1:
            raise InputError(f"{processes} processes", key="--workers", remedy="Use at least 1.")
        if processes > 1 and dask is not None:
            raise InputError("--workers and --dask exclude each other", key="--dask", remedy="Give one of them.")
        self.processes, self._dask = processes, dask
        self._losses: tuple[type[BaseException], ...] = (BrokenExecutor,)
        self._started: Executor | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def results(
        self, work: Callable[..., T], jobs: Jobs, left_of: Callable[[], Jobs] | None = None
    ) -> Iterator[tuple[int, T]]:
        """Results of jobs, with their numbers, in the order in which they are done.

        Parameters
        ----------
        left_of
            Which jobs are to be done after a loss; without it, those of which there is no result.

        Raises
        ------
        InputError
            Workers are lost again and again, or the scheduler cannot be reached.
        """
        left = dict(jobs)
        for _ in range(MOST_LOSSES):
            futures: dict[Future[T], int] = {}
            try:
                executor = self._executor()
                futures.update({_submitted(executor, work, arguments): number for number, arguments in left.items()})
                for future in as_completed(futures):
                    result = future.result()
                    del left[futures[future]]
                    yield futures[future], result
            except self._losses:
                for future, number in futures.items():  # what others have finished meanwhile
                    if number in left and future.done() and not future.cancelled() and not future.exception():
                        del left[number]
                        yield number, future.result()
                self._end()
                left = left if left_of is None else dict(left_of())
                continue
            finally:
                for future in futures:
                    future.cancel()
            return
        raise InputError(
            f"workers were lost {MOST_LOSSES} times; {len(left)} jobs are left",
            key="--dask" if self._dask else "--workers",
            remedy="Look at the workers' memory and logs, then continue with --resume.",
        )

    @property
    def here(self) -> bool:
        """Whether jobs run in this process, one after the other."""
        return self.processes == 1 and self._dask is None

    def _executor(self) -> Executor:
        """What runs jobs, started when it is first needed and after a loss."""
        if self._started is None:
            self._started = self._stack.enter_context(self._new_executor())
        return self._started

    def _end(self) -> None:
        self._started = None
        self._stack.close()

    def _new_executor(self) -> AbstractContextManager[Executor]:
        if self._dask is not None:
            return self._dask_executor(self._dask)
        import multiprocessing  # one process does without
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.processes, mp_context=context, initializer=_begin)

    @contextmanager
    def _dask_executor(self, address: str) -> Iterator[Executor]:
        try:
            import distributed
        except ImportError:
            raise InputError(
                "Dask is not installed", key="--dask", remedy="Install the extra joulecast[dask]."
            ) from None
        self._losses = (BrokenExecutor, distributed.scheduler.KilledWorker, distributed.CancelledError)
        try:
            client = distributed.Client(address, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler answers at {address!r} ({error})", key="--dask", remedy="Give its address, tcp://…"
            ) from None
        with client, client.get_executor(pure=False) as executor:
            yield executor


def _submitted(executor: Executor, work: Callable[..., T], arguments: tuple[Any, ...]) -> Future[T]:
    """A job that is under way.

    Raises
    ------
    BrokenExecutor
        A worker has ended while another was started, which then finds the pool's pipes closed.
    """
    try:
        return executor.submit(work, *arguments)
    except OSError as error:
        if error.errno is not None:  # the system's own: no process, file or memory is left
            raise
        raise BrokenExecutor("a worker ended while another was started") from error


def _begin() -> None:
    """Compute on one core, as each of many processes that share a machine should, and end with the parent."""
    use_one_thread()
    _end_with_parent()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: a killed sweep leaves no workers behind."""
    import multiprocessing

    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
