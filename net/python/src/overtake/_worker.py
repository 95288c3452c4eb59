"""Workers: hand messages to a function, keep their leases while it works, ack what succeeded, release what failed."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from . import _calls
from ._async_client import AsyncClient
from ._calls import Call
from ._client import Client
from ._errors import NotFound, OvertakeError
from ._models import Message, Outcome, Release

T = TypeVar("T")

_log = logging.getLogger("overtake")

#: Longest pause between receives while no server answers.
_PAUSE_S_MAX = 2.0


class RetryAfter(Exception):
    """For a handler that knows when its message is worth another try."""

    def __init__(self, delay_s: int, error: str) -> None:
        super().__init__(error)
        self.delay_s = delay_s


@dataclass
class Report:
    """What a worker did until it stopped."""

    #: Messages whose function succeeded, and which were acked.
    succeeded: int = 0
    #: Messages whose function raised or took too long; released with the error.
    failed: int = 0
    #: Messages given back because the worker stopped before they were done.
    given_back: int = 0
    #: Messages whose lease had ended before their outcome was told, or for which that could not be confirmed: they may
    #: be delivered again.
    lost: int = 0


@dataclass(frozen=True)
class _Options:
    """What both workers share."""

    queue: str
    concurrency: int
    lease_s: int
    wait_s: int
    max_priority: int | None
    label: str | None
    timeout_s: float | None
    drain_s: float

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency must be 1 or more")
        if not self.drain_s >= 0:
            raise ValueError("drain_s must be 0 or more")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError("timeout_s must be more than 0")

    def receive(self, free: int) -> Call[list[Message]]:
        """Only what can be started at once: urgent work never waits behind what was fetched early."""
        return _calls.receive(
            self.queue, min(free, 1_000), self.wait_s, self.lease_s, self.max_priority, self.label
        )

    def failure(self, message: Message, error: BaseException) -> Release:
        """How a failed message goes back."""
        text = str(error) or type(error).__name__
        delay_s = error.delay_s if isinstance(error, RetryAfter) else None
        return Release(message.receipt, delay_s, text)

    def too_late(self, message: Message) -> Release:
        return Release(message.receipt, None, f"not done within {self.timeout_s} s")


def _given_back(message: Message) -> Release:
    return Release(message.receipt, 0, "the worker stopped")


def _pause_s(tries: int, error: OvertakeError) -> float:
    """Seconds to wait after so many receives in a row that failed; raises what does not pass by itself."""
    if isinstance(error, NotFound):
        _log.info("the queue does not exist yet")
    elif error.passes:
        _log.warning("cannot receive: %s", error)
    else:
        raise error
    step = min(0.05 * 2.0 ** min(tries, 10), _PAUSE_S_MAX)
    return max(step * random.uniform(0.5, 1.0), error.retry_after_s or 0.0)


class _Handled(Exception):
    """Carries what a handler raised, so that it is told apart from what ends the handler."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _Loop(ABC):
    """The life of a worker, on an event loop. Calls and handlers are the kinds' own."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._stopping = asyncio.Event()
        #: A place has become free.
        self._freed = asyncio.Event()
        self._report = Report()
        self._running: set[asyncio.Task[None]] = set()
        #: Places taken by handlers that run on although nobody waits for them any more.
        self._abandoned = 0

    @abstractmethod
    async def _once(self, call: Call[T]) -> T:
        """Makes a call without repeating it."""

    @abstractmethod
    async def _send(self, call: Call[T]) -> T:
        """Makes a call, repeated while that is safe."""

    @abstractmethod
    async def _handle(self, message: Message) -> None:
        """Runs the handler until it ends or the task is cancelled; raises `_Handled` with what it raised."""

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> Report:
        try:
            await self._receive()
        finally:
            if self._running:
                await asyncio.wait(self._running, timeout=self._options.drain_s)
            for task in self._running:
                task.cancel()
            while self._running:
                await asyncio.wait(self._running)
        return self._report

    async def _receive(self) -> None:
        tries = 0
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                free = self._options.concurrency - len(self._running) - self._abandoned
                if free <= 0:
                    self._freed.clear()
                    freed = asyncio.ensure_future(self._freed.wait())
                    await asyncio.wait({stopping, freed}, return_when=asyncio.FIRST_COMPLETED)
                    freed.cancel()
                    continue
                # A stop waits for it and works on what it brings. To hang up would be no better: what the server has
                # leased by then comes back when the lease ends, as a failed delivery, and one too many is the last.
                try:
                    messages = await self._once(self._options.receive(free))
                except OvertakeError as error:
                    await asyncio.wait({stopping}, timeout=_pause_s(tries, error))
                    tries += 1
                    continue
                tries = 0
                for message in messages:
                    task = asyncio.ensure_future(self._work(message))
                    self._running.add(task)
                    task.add_done_callback(self._ended)
        finally:
            stopping.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()

    async def _work(self, message: Message) -> None:
        release: Release | None = None
        name = "succeeded"
        keeper = asyncio.ensure_future(self._keep_lease(message))
        try:
            await asyncio.wait_for(self._handle(message), self._options.timeout_s)
        except asyncio.CancelledError:
            release, name = _given_back(message), "given_back"
        except asyncio.TimeoutError:
            release, name = self._options.too_late(message), "failed"
        except _Handled as handled:
            release, name = self._options.failure(message, handled.error), "failed"
        finally:
            keeper.cancel()
        await self._settle(message, release, name)

    async def _settle(self, message: Message, release: Release | None, name: str) -> None:
        ack, releases = ((message.receipt,), ()) if release is None else ((), (release,))
        try:
            outcomes = await self._send(_calls.settle(self._options.queue, ack, (), releases))
        except OvertakeError as error:
            _log.warning("cannot settle %s: %s", message.id, error)
            name = "lost"
        else:
            name = name if outcomes.get(message.receipt) == Outcome.OK else "lost"
        setattr(self._report, name, getattr(self._report, name) + 1)

    async def _keep_lease(self, message: Message) -> None:
        lease_s = self._options.lease_s
        pause_s = lease_s / 2
        while True:
            await asyncio.sleep(pause_s)
            try:
                call = _calls.settle(self._options.queue, (), [(message.receipt, lease_s)], ())
                outcome = (await self._once(call)).get(message.receipt)
            except OvertakeError as error:
                _log.warning("a lease was not extended: %s", error)
                # Soon again: half of the lease is left.
                pause_s = min(1.0, lease_s / 8)
                continue
            pause_s = lease_s / 2
            if outcome != Outcome.OK:
                _log.warning("%s: its lease was lost; it may run elsewhere, too", message.id)
                return


class AsyncWorker(_Loop):
    """Works on one queue with tasks until it is stopped.

    `handler` is awaited once for each delivery, at most `concurrency` at a time. Where it returns the message is acked;
    where it raises, the message is released with the error's text, and the queue decides when, or whether, it is tried
    again (`RetryAfter` decides when). Leases are extended whenever half of `lease_s` is over, until the handler ends.
    After `timeout_s` the handler is cancelled and the message released.
    """

    def __init__(
        self,
        client: AsyncClient,
        queue: str,
        handler: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 8,
        lease_s: int = 30,
        wait_s: int = 5,
        max_priority: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
        drain_s: float = 30.0,
    ) -> None:
        super().__init__(_Options(queue, concurrency, lease_s, wait_s, max_priority, label, timeout_s, drain_s))
        self._client = client
        self._handler = handler

    def stop(self) -> None:
        """Asks for nothing more from now on. `run` waits for the receive that is open, at most `wait_s`, works on what it
        brings, and returns when that and what was begun before is done, or given back after `drain_s`. What is given
        back counts as a failed delivery. For signals: `loop.add_signal_handler(signal.SIGTERM, worker.stop)`.
        """
        super().stop()

    async def run(self) -> Report:
        """Works until `stop` is called, and raises what no waiting can mend (a token that is not taken, say)."""
        return await super().run()

    async def _once(self, call: Call[T]) -> T:
        return await self._client._once(call)

    async def _send(self, call: Call[T]) -> T:
        return await self._client._send(call)

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except Exception as error:
            raise _Handled(error) from error


class Worker:
    """Works on one queue with threads until it is stopped.

    `handler` runs once for each delivery, at most `concurrency` at a time, each in a thread of its own. Where it returns
    the message is acked; where it raises, the message is released with the error's text, and the queue decides when, or
    whether, it is tried again (`RetryAfter` decides when). Leases are extended whenever half of `lease_s` is over, until
    the function ends.

    After `timeout_s` a message is released. Python cannot end a thread: the function runs on, keeps its place among
    `concurrency`, and what it returns is no longer heard. `AsyncWorker` ends it.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 8,
        lease_s: int = 30,
        wait_s: int = 5,
        max_priority: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
        drain_s: float = 30.0,
    ) -> None:
        options = _Options(queue, concurrency, lease_s, wait_s, max_priority, label, timeout_s, drain_s)
        self._worker = _ThreadLoop(client, handler, options)
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Asks for nothing more from now on. `run` waits for the receive that is open, at most `wait_s`, works on what it
        brings, and returns when that and what was begun before is done, or given back after `drain_s`. What is given
        back counts as a failed delivery. May be called by any thread and by a signal handler.
        """
        # In this order, as `_run` looks at them in the other one: so a stop is never missed.
        self._stopping.set()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._worker.stop)
            except RuntimeError:
                # It has ended already.
                pass

    def run(self) -> Report:
        """Works until `stop` is called, and raises what no waiting can mend (a token that is not taken, say).

        Runs an event loop of its own, so it cannot be called where one runs already: there `AsyncWorker` is at home.
        """
        return asyncio.run(self._run())

    async def _run(self) -> Report:
        self._loop = asyncio.get_running_loop()
        if self._stopping.is_set():
            self._worker.stop()
        return await self._worker.run()


class _ThreadLoop(_Loop):
    """A worker whose calls block and whose handler does: both in threads."""

    def __init__(self, client: Client, handler: Callable[[Message], object], options: _Options) -> None:
        super().__init__(options)
        self._client = client
        self._handler = handler
        # Each message settles or extends, and one receive waits.
        self._calls = ThreadPoolExecutor(min(options.concurrency, 64) + 1, "overtake-calls")

    async def run(self) -> Report:
        try:
            return await super().run()
        finally:
            self._calls.shutdown(wait=False)

    async def _once(self, call: Call[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._calls, self._client._once, call)

    async def _send(self, call: Call[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._calls, self._client._send, call)

    async def _handle(self, message: Message) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if ended.cancelled():
                self._abandoned -= 1
                self._freed.set()
            else:
                ended.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                self._handler(message)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(tell, error)
            except RuntimeError:
                # The worker has ended without this handler.
                pass

        # Not of a pool: a process can end while the thread of an endless handler runs.
        threading.Thread(target=work, daemon=True, name="overtake-work").start()
        try:
            error = await ended
        except asyncio.CancelledError:
            # Not where it ended in this very moment.
            self._abandoned += ended.cancelled()
            raise
        if error is not None:
            raise _Handled(error) from error
