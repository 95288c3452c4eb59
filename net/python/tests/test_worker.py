"""Workers against the real server: what succeeds is acked, what fails released, what takes long keeps its lease."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import overtake
from overtake import AsyncClient, AsyncWorker, Client, Message, NewMessage, Report, RetryAfter, Worker


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if value := holds():
            return value
        time.sleep(0.02)
    pytest.fail("it did not come about within 20 s")


class _Watching(httpx.HTTPTransport):
    def __init__(self, receives: threading.Semaphore) -> None:
        super().__init__()
        self.receives = receives

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/receive"):
            self.receives.release()
        return super().handle_request(request)


class _AsyncWatching(httpx.AsyncHTTPTransport):
    def __init__(self, receives: threading.Semaphore) -> None:
        super().__init__()
        self.receives = receives

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/receive"):
            self.receives.release()
        return await super().handle_async_request(request)


class Kind:
    """Runs a handler, given as a blocking function of the message and a way to wait, in either worker."""

    def __init__(self, name: str, server: str) -> None:
        self.name, self.server = name, server
        self.report: Report | None = None
        #: Released whenever a receive goes out.
        self.receives = threading.Semaphore(0)
        self.stop: Callable[[], None] = lambda: None

    def start(self, queue: str, handler: Callable[[Message], float | None], **options: Any) -> Kind:
        """A number that the handler returns is so many seconds of further work."""
        started = threading.Event()

        def sync() -> None:
            def work(message: Message) -> None:
                time.sleep(handler(message) or 0)

            with Client(self.server, transport=_Watching(self.receives)) as client:
                worker = Worker(client, queue, work, **options)
                self.stop = worker.stop
                started.set()
                self.report = worker.run()

        async def asynchronous() -> None:
            async def work(message: Message) -> None:
                await asyncio.sleep(handler(message) or 0)

            loop = asyncio.get_running_loop()
            async with AsyncClient(self.server, transport=_AsyncWatching(self.receives)) as client:
                worker = AsyncWorker(client, queue, work, **options)

                def stop() -> None:
                    loop.call_soon_threadsafe(worker.stop)

                self.stop = stop
                started.set()
                self.report = await worker.run()

        target = sync if self.name == "threads" else lambda: asyncio.run(asynchronous())
        self.thread = threading.Thread(target=target)
        self.thread.start()
        started.wait()
        return self

    def end(self) -> Report:
        self.stop()
        self.thread.join(30)
        assert self.report is not None
        return self.report


@pytest.fixture(params=["threads", "tasks"])
def kind(request: pytest.FixtureRequest, server: str) -> Kind:
    return Kind(request.param, server)


def test_everything_is_worked_on_and_acked_with_bounded_concurrency(client: Client, queue: str, kind: Kind) -> None:
    client.enqueue_batch(queue, [NewMessage(b"%d" % n, n % 5) for n in range(60)])
    lock, most, seen = threading.Lock(), 0, []

    def work(message: Message) -> float:
        nonlocal most
        leased = client.stats(queue)["workers"]["w"]
        with lock:
            seen.append(message.body)
            most = max(most, leased)
        return 0.01

    worker = kind.start(queue, work, concurrency=4, wait_s=1, label="w")
    until(lambda: client.stats(queue)["totals"]["acked"] == 60)
    assert worker.end() == Report(succeeded=60)
    assert sorted(seen) == sorted(b"%d" % n for n in range(60))
    assert 1 <= most <= 4


def test_failures_are_released_with_their_text(client: Client, queue: str, kind: Kind) -> None:
    client.enqueue_batch(queue, [NewMessage(b"raise", 0), NewMessage(b"later", 0)])

    def work(message: Message) -> None:
        if message.body == b"raise":
            raise ValueError("no such mailbox")
        if message.deliveries == 1:
            raise RetryAfter(1, "not yet")

    worker = kind.start(queue, work, wait_s=1)
    [letter] = until(lambda: client.dlq_list(queue).entries)
    assert (letter.body, letter.last_error) == (b"raise", "no such mailbox")
    until(lambda: client.stats(queue)["totals"]["acked"] == 1)
    assert worker.end() == Report(succeeded=1, failed=3)


def test_long_work_keeps_its_lease(client: Client, queue: str, kind: Kind) -> None:
    client.enqueue(queue, NewMessage(b"long", 0))
    worker = kind.start(queue, lambda message: 2.6, lease_s=1, wait_s=1)
    until(lambda: client.stats(queue)["totals"]["acked"] == 1)
    assert worker.end() == Report(succeeded=1)
    totals = client.stats(queue)["totals"]
    assert (totals["deliveries"], totals["lease_expirations"]) == (1, 0)


def test_a_message_that_takes_too_long_is_released(client: Client, queue: str, kind: Kind) -> None:
    client.enqueue(queue, NewMessage(b"slow", 0))
    worker = kind.start(queue, lambda message: 1.5 if message.deliveries == 1 else 0, timeout_s=0.2, wait_s=1)
    until(lambda: client.stats(queue)["totals"]["acked"] == 1)
    assert worker.end() == Report(succeeded=1, failed=1)


def test_a_thread_that_is_not_waited_for_keeps_its_place(client: Client, queue: str, server: str) -> None:
    client.enqueue_batch(queue, [NewMessage(b"slow", 0), NewMessage(b"next", 1)])
    began: dict[bytes, float] = {}

    def work(message: Message) -> float:
        began.setdefault(message.body, time.monotonic())
        return 1.5 if message.body == b"slow" and message.deliveries == 1 else 0

    worker = Kind("threads", server).start(queue, work, concurrency=1, timeout_s=0.2, wait_s=1)
    until(lambda: client.stats(queue)["totals"]["acked"] == 2)
    assert worker.end() == Report(succeeded=2, failed=1)
    assert began[b"next"] - began[b"slow"] >= 1.5


def test_a_signal_handler_may_stop_a_worker(client: Client, queue: str) -> None:
    client.enqueue(queue, NewMessage(b"the end", 0))
    worker = Worker(client, queue, lambda message: os.kill(os.getpid(), signal.SIGUSR1), wait_s=1)
    before = signal.signal(signal.SIGUSR1, lambda *_: worker.stop())
    try:
        assert worker.run() == Report(succeeded=1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_worker_that_was_stopped_before_it_ran_takes_nothing(client: Client, queue: str) -> None:
    client.enqueue(queue, NewMessage(b"stays", 0))
    worker = Worker(client, queue, lambda message: None)
    worker.stop()
    assert worker.run() == Report()
    worker.stop()
    assert client.stats(queue)["visible"]["p0"] == 1


def test_a_stop_waits_for_running_work_and_gives_back_the_rest(client: Client, queue: str, kind: Kind) -> None:
    client.enqueue_batch(queue, [NewMessage(b"quick", 0), NewMessage(b"endless", 1)])
    begun = threading.Semaphore(0)

    def work(message: Message) -> float:
        begun.release()
        return 0.5 if message.body == b"quick" else 6.0

    worker = kind.start(queue, work, concurrency=2, drain_s=1.0, wait_s=1)
    begun.acquire()
    begun.acquire()
    assert worker.end() == Report(succeeded=1, given_back=1)
    stats = client.stats(queue)
    assert (stats["leased"], stats["visible"]["p1"], stats["totals"]["acked"]) == (0, 1, 1)


def test_what_an_open_receive_brings_after_the_stop_is_worked_on(client: Client, queue: str, kind: Kind) -> None:
    client.put_queue(queue, {"max_deliveries": 1})
    worker = kind.start(queue, lambda message: None, wait_s=5)
    worker.receives.acquire()
    worker.stop()
    client.enqueue(queue, NewMessage(b"the only chance", 0))
    assert worker.end() == Report(succeeded=1)
    stats = client.stats(queue)
    assert (stats["totals"]["acked"], stats["dlq"]) == (1, 0)
    assert not worker.receives.acquire(blocking=False), "it asked again after the stop"


def test_an_option_that_cannot_be_meant_is_refused(client: Client) -> None:
    wrong: list[dict[str, Any]] = [{"concurrency": 0}, {"drain_s": float("nan")}, {"timeout_s": 0}]
    for options in wrong:
        with pytest.raises(ValueError):
            Worker(client, "q", lambda message: None, **options)


def test_what_no_waiting_can_mend_ends_the_worker(server: str) -> None:
    with Client(server) as client, pytest.raises(overtake.InvalidRequest):
        Worker(client, ".not-a-name", lambda message: None).run()

    async def session() -> None:
        async with AsyncClient(server) as client:

            async def work(message: Message) -> None:
                pass

            await AsyncWorker(client, ".not-a-name", work).run()

    with pytest.raises(overtake.InvalidRequest):
        asyncio.run(session())
