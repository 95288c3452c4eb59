"""Workers: hand messages to a function, keep their leases while it works, ack what succeeded, release what failed."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from . import _calls
from ._async_client import AsyncClient
from ._calls import Call
from ._client import Client
from ._errors import NotFound, OvertakeError
from ._models import Message, Outcome, Release

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
        self._client = client
        self._handler = handler
        self._options = _Options(
            queue, concurrency, lease_s, wait_s, max_priority, label, timeout_s, drain_s
        )
        self._stopping = threading.Event()
        #: Guards everything below.
        self._changed = threading.Condition()
        self._held: dict[str, _Held] = {}
        self._busy = 0
        self._settling = 0
        self._report = Report()
        self._done = False

    def stop(self) -> None:
        """Takes nothing new from now on; `run` returns when what is being worked on is done, or given back after
        `drain_s`. May be called by any thread and by a signal handler.
        """
        self._stopping.set()

    def run(self) -> Report:
        """Works until `stop` is called, and raises what no waiting can mend (a token that is not taken, say)."""
        keeper = threading.Thread(target=self._keep_leases, daemon=True, name="overtake-leases")
        keeper.start()
        try:
            self._receive()
        finally:
            self._drain()
            with self._changed:
                self._done = True
                self._changed.notify_all()
            keeper.join()
        return self._report

    def _receive(self) -> None:
        tries = 0
        while not self._stopping.is_set():
            with self._changed:
                free = self._options.concurrency - self._busy
                if free == 0:
                    # Woken by whoever ends; the time-out is for `stop`, which must not take a lock.
                    self._changed.wait(0.2)
                    continue
            try:
                messages = self._client._once(self._options.receive(free))
            except OvertakeError as error:
                self._stopping.wait(_pause_s(tries, error))
                tries += 1
                continue
            tries = 0
            if self._stopping.is_set():
                self._give_back(messages)
                return
            for message in messages:
                held = _Held(message, time.monotonic())
                with self._changed:
                    self._held[message.receipt] = held
                    self._busy += 1
                    self._changed.notify_all()
                threading.Thread(target=self._work, args=(held,), daemon=True, name="overtake-work").start()

    def _work(self, held: _Held) -> None:
        message = held.message
        release: Release | None = None
        try:
            self._handler(message)
        except BaseException as error:
            release = self._options.failure(message, error)
        with self._changed:
            # Taken away where it took too long, or the worker stopped.
            ours = self._held.pop(message.receipt, None) is not None
            if ours:
                self._settling += 1
            else:
                self._busy -= 1
            self._changed.notify_all()
        if not ours:
            return
        outcome = self._settle(message, release)
        with self._changed:
            self._busy -= 1
            self._settling -= 1
            self._count(outcome, "succeeded" if release is None else "failed", 1)
            self._changed.notify_all()

    def _settle(self, message: Message, release: Release | None) -> Outcome | None:
        try:
            if release is None:
                return self._client.ack(self._options.queue, message.receipt)
            return self._client.settle(self._options.queue, release=[release])[message.receipt]
        except OvertakeError as error:
            _log.warning("cannot settle %s: %s", message.id, error)
            return None

    def _count(self, outcome: Outcome | None, name: str, number: int) -> None:
        name = name if outcome == Outcome.OK else "lost"
        setattr(self._report, name, getattr(self._report, name) + number)

    def _give_back(self, messages: list[Message]) -> None:
        for message in messages:
            outcome = self._settle(message, _given_back(message))
            with self._changed:
                self._count(outcome, "given_back", 1)

    def _drain(self) -> None:
        end = time.monotonic() + self._options.drain_s
        with self._changed:
            while self._held and time.monotonic() < end:
                self._changed.wait(end - time.monotonic())
            left = [held.message for held in self._held.values()]
            self._held.clear()
        self._give_back(left)
        with self._changed:
            while self._settling:
                self._changed.wait()

    def _keep_leases(self) -> None:
        options = self._options
        half_s = options.lease_s / 2
        while True:
            with self._changed:
                if self._done:
                    return
                now = time.monotonic()
                late = [
                    held
                    for held in self._held.values()
                    if options.timeout_s is not None and now >= held.since + options.timeout_s
                ]
                for held in late:
                    del self._held[held.message.receipt]
                self._settling += len(late)
                due = [held for held in self._held.values() if now >= held.extended + half_s]
                if not late and not due:
                    waits = [held.extended + half_s - now for held in self._held.values()]
                    if options.timeout_s is not None:
                        waits += [held.since + options.timeout_s - now for held in self._held.values()]
                    self._changed.wait(max(min(waits), 0.001) if waits else None)
                    continue
            for held in late:
                outcome = self._settle(held.message, options.too_late(held.message))
                with self._changed:
                    self._settling -= 1
                    self._count(outcome, "failed", 1)
                    self._changed.notify_all()
            if due:
                self._extend(due, now)

    def _extend(self, due: list[_Held], now: float) -> None:
        extend = [(held.message.receipt, self._options.lease_s) for held in due]
        try:
            call = _calls.settle(self._options.queue, (), extend, ())
            outcomes = self._client._once(call)
        except OvertakeError as error:
            _log.warning("leases were not extended: %s", error)
            # Soon again: half of the lease is left.
            again = now - self._options.lease_s / 2 + min(1.0, self._options.lease_s / 8)
            for held in due:
                held.extended = again
            return
        for held in due:
            held.extended = now
            if outcomes.get(held.message.receipt) != Outcome.OK:
                with self._changed:
                    lost = held.message.receipt in self._held
                if lost:
                    _log.warning("%s: its lease was lost; it may run elsewhere, too", held.message.id)


@dataclass
class _Held:
    message: Message
    since: float
    extended: float = 0.0

    def __post_init__(self) -> None:
        self.extended = self.since


class AsyncWorker:
    """Works on one queue with tasks until it is stopped; like `Worker`, but `handler` is a coroutine function, and
    `timeout_s` ends it by cancelling it.
    """

    def __init__(
        self,
        client: AsyncClient,
        queue: str,
        handler: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 8,
        lease_s: int = 30,
        wait_s: int = 20,
        max_priority: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
        drain_s: float = 30.0,
    ) -> None:
        self._client = client
        self._handler = handler
        self._options = _Options(
            queue, concurrency, lease_s, wait_s, max_priority, label, timeout_s, drain_s
        )
        self._stopping = asyncio.Event()
        self._report = Report()
        self._running: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Takes nothing new from now on; `run` returns when what is being worked on is done, or given back after
        `drain_s`. For signals: `loop.add_signal_handler(signal.SIGTERM, worker.stop)`.
        """
        self._stopping.set()

    async def run(self) -> Report:
        """Works until `stop` is called, and raises what no waiting can mend (a token that is not taken, say)."""
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
                free = self._options.concurrency - len(self._running)
                if free == 0:
                    await asyncio.wait({stopping, *self._running}, return_when=asyncio.FIRST_COMPLETED)
                    continue
                # A task of its own, so that a stop takes it back: who hangs up while it waits gets no lease.
                receiving = asyncio.ensure_future(self._client._once(self._options.receive(free)))
                await asyncio.wait({stopping, receiving}, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    receiving.cancel()
                    await asyncio.wait({receiving})
                    return
                try:
                    messages = receiving.result()
                except OvertakeError as error:
                    await asyncio.wait({stopping}, timeout=_pause_s(tries, error))
                    tries += 1
                    continue
                tries = 0
                for message in messages:
                    task = asyncio.ensure_future(self._work(message))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
        finally:
            stopping.cancel()

    async def _work(self, message: Message) -> None:
        release: Release | None = None
        name = "succeeded"
        keeper = asyncio.ensure_future(self._keep_lease(message))
        try:
            await asyncio.wait_for(self._handle(message), self._options.timeout_s)
        except asyncio.CancelledError:
            release, name = _given_back(message), "given_back"
        except _TimedOut as error:
            release, name = self._options.failure(message, error.__cause__ or error), "failed"
        except asyncio.TimeoutError:
            release, name = self._options.too_late(message), "failed"
        except Exception as error:
            release, name = self._options.failure(message, error), "failed"
        finally:
            keeper.cancel()
        try:
            if release is None:
                outcome = await self._client.ack(self._options.queue, message.receipt)
            else:
                outcome = (await self._client.settle(self._options.queue, release=[release]))[message.receipt]
        except OvertakeError as error:
            _log.warning("cannot settle %s: %s", message.id, error)
            name = "lost"
        else:
            name = name if outcome == Outcome.OK else "lost"
        setattr(self._report, name, getattr(self._report, name) + 1)

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except asyncio.TimeoutError as error:
            # Of something that the function waited for; told apart from ours.
            raise _TimedOut(str(error)) from error

    async def _keep_lease(self, message: Message) -> None:
        lease_s = self._options.lease_s
        pause_s = lease_s / 2
        while True:
            await asyncio.sleep(pause_s)
            try:
                call = _calls.settle(self._options.queue, (), [(message.receipt, lease_s)], ())
                outcome = (await self._client._once(call)).get(message.receipt)
            except OvertakeError as error:
                _log.warning("a lease was not extended: %s", error)
                # Soon again: half of the lease is left.
                pause_s = min(1.0, lease_s / 8)
                continue
            pause_s = lease_s / 2
            if outcome != Outcome.OK:
                _log.warning("%s: its lease was lost; it may run elsewhere, too", message.id)
                return


class _TimedOut(Exception):
    """A time-out inside a handler."""
