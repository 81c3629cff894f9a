"""Threads that wait for something to do."""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["Workers"]

Work = Callable[[], object]


class Workers:
    """Some threads of this process, each with a queue of its own; they end with their owner.

    A pool of the standard library takes several times as long to start something.

    Args:
        count: Threads.
    """

    def __init__(self, count: int) -> None:
        self._process = os.getpid()
        self._queues: list[SimpleQueue[Work | None]] = [SimpleQueue() for _ in range(count)]
        self._threads = [threading.Thread(target=_work, args=(queue,), daemon=True) for queue in self._queues]
        for thread in self._threads:
            thread.start()
        weakref.finalize(self, _end, self._queues)

    @property
    def alive(self) -> bool:
        """Whether they exist: a fork leaves them in the parent."""
        return self._process == os.getpid()

    def start(self, number: int, work: Work) -> None:
        """Let a thread do something when it has done all that it was given before."""
        self._queues[number].put(work)

    def end(self) -> None:
        """Wait until all that was started is done, whoever interrupts, and end the threads."""
        _end(self._queues)
        while any(thread.is_alive() for thread in self._threads):
            with suppress(KeyboardInterrupt):
                for thread in self._threads:
                    thread.join()


def _work(queue: "SimpleQueue[Work | None]") -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # it would keep its owner, and so this thread, until there is more to do


def _end(queues: "list[SimpleQueue[Work | None]]") -> None:
    for queue in queues:
        queue.put(None)
