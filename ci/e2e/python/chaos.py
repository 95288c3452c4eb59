"""A producer and a worker of the Python client that write down what they see, for `tests/chaos.rs`.

`python chaos.py threads|tasks SERVER QUEUE LEASE_S` prints a JSON object for each thing that it saw. It stores messages
until a line comes on standard input, and works until that is closed; its last line is the worker's report.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
import zlib
from dataclasses import asdict
from typing import Any

from overtake import AsyncClient, AsyncWorker, Client, Message, NewMessage, OvertakeError, Worker, new_message_id

PRODUCERS = 4
#: Pauses that keep the load below what the worker, some of whose messages take long, gets done.
PAUSE_S = 0.02
BATCH = 5
CONCURRENCY = 32
#: A minute of trying is longer than any fault.
RETRY_FOR_S = 60.0
#: Longer than a receive of the worker waits.
TIMEOUT_S = 3.0
NAME = "name"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def say(**fields: Any) -> None:
    # One write, so that lines of several threads do not mix.
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def body_of(name: str) -> bytes:
    """As `load::body_of` makes it."""
    text = name.encode()
    length = len(text) + sum((at + 1) * byte for at, byte in enumerate(text)) % 3_000
    return (text * (length // len(text) + 1))[:length]


def draw(number: int) -> NewMessage:
    """A message by an id of ours, or by a dedup key alone."""
    name = new_message_id()
    keyed = number % 4 == 0
    return NewMessage(
        body_of(name),
        number % 5,
        id=None if keyed else name,
        dedup_key=name if keyed else None,
        headers={NAME: name},
    )


def stored(message: NewMessage, start_ms: int, id: str, duplicate: bool) -> None:
    say(what="stored", id=id, key=message.dedup_key, start_ms=start_ms, end_ms=now_ms(), duplicate=duplicate)


def unknown(message: NewMessage, start_ms: int, error: OvertakeError) -> None:
    say(what="unknown", id=message.id, key=message.dedup_key, start_ms=start_ms, end_ms=now_ms(), error=str(error))


def delivered(message: Message, lease_s: int) -> float:
    """Tells a delivery. Gives how long to work; raises where the message shall fail."""
    luck = zlib.crc32(message.id.encode()) % 50
    fails = 1 <= luck < 4 and message.deliveries == 1
    expires_ms = round(message.lease_expires_at.timestamp() * 1_000)
    say(
        what="delivered",
        id=message.id,
        receipt=message.receipt,
        deliveries=message.deliveries,
        lease_expires_at_ms=expires_ms,
        intact=message.body == body_of(message.headers[NAME]),
        # The receive took effect when the lease began; its answer may have been long on its way.
        start_ms=min(expires_ms - lease_s * 1_000, now_ms()),
        end_ms=now_ms(),
        settles="release" if fails else "ack",
    )
    if fails:
        raise ValueError("fails at first")
    return lease_s * 1.5 if luck == 0 else 0.0


def threads(server: str, queue: str, lease_s: int) -> None:
    stop = threading.Event()
    numbers = itertools.count()

    def produce() -> None:
        while not stop.is_set():
            message, start_ms = draw(next(numbers)), now_ms()
            try:
                answer = client.enqueue(queue, message)
                stored(message, start_ms, answer.id, answer.duplicate)
            except OvertakeError as error:
                unknown(message, start_ms, error)
            time.sleep(PAUSE_S)

    def work(message: Message) -> None:
        time.sleep(delivered(message, lease_s))

    with Client(server, retry_for_s=RETRY_FOR_S, timeout_s=TIMEOUT_S) as client:
        worker = Worker(client, queue, work, concurrency=CONCURRENCY, lease_s=lease_s, wait_s=1)
        report: list[Any] = []
        working = threading.Thread(target=lambda: report.append(worker.run()))
        working.start()
        producers = [threading.Thread(target=produce) for _ in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        sys.stdin.readline()
        stop.set()
        for producer in producers:
            producer.join()
        say(what="produced")
        sys.stdin.read()
        worker.stop()
        working.join()
    say(what="report", **asdict(report[0]))


async def tasks(server: str, queue: str, lease_s: int) -> None:
    stop = False
    numbers = itertools.count()

    async def produce() -> None:
        while not stop:
            batch, start_ms = [draw(next(numbers)) for _ in range(BATCH)], now_ms()
            try:
                outcomes = await client.enqueue_batch(queue, batch)
            except OvertakeError as error:
                outcomes = [error] * len(batch)
            for message, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, OvertakeError):
                    unknown(message, start_ms, outcome)
                else:
                    stored(message, start_ms, outcome.id, outcome.duplicate)
            await asyncio.sleep(BATCH * PAUSE_S)

    async def work(message: Message) -> None:
        await asyncio.sleep(delivered(message, lease_s))

    async with AsyncClient(server, retry_for_s=RETRY_FOR_S, timeout_s=TIMEOUT_S) as client:
        worker = AsyncWorker(client, queue, work, concurrency=CONCURRENCY, lease_s=lease_s, wait_s=1)
        working = asyncio.ensure_future(worker.run())
        producers = [asyncio.ensure_future(produce()) for _ in range(PRODUCERS)]
        await asyncio.to_thread(sys.stdin.readline)
        stop = True
        await asyncio.gather(*producers)
        say(what="produced")
        await asyncio.to_thread(sys.stdin.read)
        worker.stop()
        report = await working
    say(what="report", **asdict(report))


def main() -> None:
    kind, server, queue, lease_s = sys.argv[1:]
    if kind == "threads":
        threads(server, queue, int(lease_s))
    else:
        asyncio.run(tasks(server, queue, int(lease_s)))


if __name__ == "__main__":
    main()
