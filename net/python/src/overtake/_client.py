"""The client that blocks. Made from `_async_client.py` by `make_sync_client.py`: change it there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import httpx

from . import _calls
from ._calls import Call, Tries
from ._errors import ClientClosed, OvertakeError
from ._models import (
    Cluster,
    DeadLetter,
    Inspected,
    Message,
    NewMessage,
    Outcome,
    Page,
    PeekedMessage,
    QueueConfig,
    QueueListed,
    Release,
    State,
    Stats,
    Stored,
)

T = TypeVar("T")


class Client:
    """A client of a queue server. Threads may share one; used as a context manager, it closes its connections at the end.

    Any node serves any queue: with several `servers` a call that one cannot serve for the moment goes to the next.
    What fails without harm (no connection, a limit, no quorum), and what may be done twice (an enqueue, since every
    message has an id or a dedup key; a settle; a look), is tried again for `retry_for_s`; other calls raise, and the
    error says what is known.

    `servers` are URLs such as `http://node1:7401`; what cannot be one, or cannot be a token, is a `ValueError`. Every other
    error is an `OvertakeError`.

    `verify` is what httpx takes: a certificate file, an `ssl.SSLContext`, or False.
    """

    def __init__(
        self,
        *servers: str,
        token: str | None = None,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
        verify: Any = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._servers = [_calls.server(server) for server in servers or ("http://127.0.0.1:7401",)]
        self._timeout_s = _calls.seconds(timeout_s, "timeout_s")
        self._retry_for_s = _calls.seconds(retry_for_s, "retry_for_s")
        self._next = 0
        headers = _calls.authorization(token)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.Client(
            headers=headers, verify=verify, limits=limits, transport=transport, trust_env=False
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _once(self, call: Call[T]) -> T:
        url = self._servers[self._next % len(self._servers)] + call.path
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + call.wait_s)
        content, headers = _calls.encoded(call)
        if self._http.is_closed:
            raise ClientClosed("the client is closed")
        try:
            response = self._http.request(call.method, url, content=content, headers=headers, timeout=timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _calls.error_of(error) from error
        return _calls.answer_of(call, response)

    def _send(self, call: Call[T]) -> T:
        tries = Tries(len(self._servers), self._retry_for_s, time.monotonic())
        while True:
            try:
                return self._once(call)
            except OvertakeError as error:
                pause = tries.pause(call, error, time.monotonic())
                if pause is None:
                    raise tries.verdict(error)
            self._next += 1
            time.sleep(pause)

    def put_queue(self, name: str, config: QueueConfig | None = None) -> QueueConfig:
        """Creates a queue, or changes the fields that `config` names. Gives the whole configuration."""
        return self._send(_calls.put_queue(name, config or {}))

    def get_queue(self, name: str) -> QueueConfig:
        """The configuration of a queue, every field."""
        return self._send(_calls.get_queue(name))

    def list_queues(self, limit: int | None = None, after: str | None = None) -> Page[QueueListed]:
        """One page of the queues, by name."""
        return self._send(_calls.list_queues(limit, after))

    def queues(self) -> Iterator[QueueListed]:
        """All queues, by name."""
        after = None
        while True:
            page = self.list_queues(after=after)
            for entry in page.entries:
                yield entry
            after = page.next
            if after is None:
                return

    def delete_queue(self, name: str) -> None:
        """Deletes a queue with its messages."""
        self._send(_calls.delete_queue(name))

    def enqueue(self, queue: str, message: NewMessage) -> Stored:
        """Stores a message. When this returns it is on the server's stable storage."""
        return self._send(_calls.enqueue(queue, message))

    def enqueue_batch(self, queue: str, messages: Sequence[NewMessage]) -> list[Stored | OvertakeError]:
        """Stores 1 to 1,000 messages and gives each one's outcome, in order; those that can only not be stored for the
        moment are tried again like a single one.
        """
        named = [_calls.named(message) for message in messages]
        outcomes = self._send(_calls.enqueue_batch(queue, named))
        tries = Tries(len(self._servers), self._retry_for_s, time.monotonic())
        while True:
            left = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, OvertakeError) and outcome.passes]
            if not left:
                return outcomes
            call = _calls.enqueue_batch(queue, [named[at] for at in left])
            first = outcomes[left[0]]
            pause = tries.pause(call, first, time.monotonic()) if isinstance(first, OvertakeError) else None
            if pause is None:
                return outcomes
            time.sleep(pause)
            again: list[Stored | OvertakeError]
            try:
                again = self._send(call)
            except OvertakeError as error:
                again = [error for _ in left]
            for at, outcome in zip(left, again, strict=True):
                outcomes[at] = _calls.latest(outcomes[at], outcome)

    def receive(
        self,
        queue: str,
        *,
        max: int | None = None,
        wait_s: int | None = None,
        lease_s: int | None = None,
        max_priority: int | None = None,
        worker: str | None = None,
    ) -> list[Message]:
        """Leases the most urgent messages, waiting up to `wait_s` (0..=20) for the first."""
        return self._send(_calls.receive(queue, max, wait_s, lease_s, max_priority, worker))

    def settle(
        self,
        queue: str,
        *,
        ack: Iterable[str] = (),
        extend: Iterable[tuple[str, int]] = (),
        release: Iterable[str | Release] = (),
    ) -> dict[str, Outcome]:
        """Ends, extends (receipt, seconds) and gives back leases; an outcome for each receipt."""
        return self._send(_calls.settle(queue, ack, extend, release))

    def ack(self, queue: str, receipt: str) -> Outcome:
        """The message is done: deletes it."""
        return (self.settle(queue, ack=[receipt]))[receipt]

    def extend(self, queue: str, receipt: str, lease_s: int) -> Outcome:
        """Sets the lease's end to `lease_s` from now."""
        return (self.settle(queue, extend=[(receipt, lease_s)]))[receipt]

    def release(
        self, queue: str, receipt: str, *, delay_s: int | None = None, error: str | None = None
    ) -> Outcome:
        """Gives the message back, to be delivered again."""
        return (self.settle(queue, release=[Release(receipt, delay_s, error)]))[receipt]

    def stats(self, queue: str) -> Stats:
        """Counts, ages, waits and totals, as the API shows them."""
        return self._send(_calls.stats(queue))

    def peek(
        self,
        queue: str,
        *,
        states: Iterable[State | str] | None = None,
        priority: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[PeekedMessage]:
        """One page of messages, without leasing them."""
        return self._send(_calls.peek(queue, states, priority, limit, after))

    def inspect(self, queue: str, message_id: str) -> Inspected:
        """Where a message is, and why it has not been delivered."""
        return self._send(_calls.inspect(queue, message_id))

    def cancel(self, queue: str, message_id: str) -> None:
        """Deletes a visible or delayed message."""
        self._send(_calls.cancel(queue, message_id))

    def purge(self, queue: str) -> int:
        """Deletes all visible and delayed messages and gives their number."""
        return self._send(_calls.purge(queue))

    def dlq_list(self, queue: str, limit: int | None = None, after: str | None = None) -> Page[DeadLetter]:
        """One page of dead letters."""
        return self._send(_calls.dlq_list(queue, limit, after))

    def dlq_redrive(
        self,
        queue: str,
        *,
        ids: Iterable[str] | None = None,
        from_priority: int | None = None,
        priority: int | None = None,
        max_per_s: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Brings dead letters back: those of `ids`, those that had a level, or all; gives how many will move."""
        return self._send(_calls.dlq_redrive(queue, ids, from_priority, priority, max_per_s, dry_run))

    def dlq_purge(self, queue: str) -> int:
        """Deletes all dead letters and gives their number."""
        return self._send(_calls.dlq_purge(queue))

    def cluster(self) -> Cluster:
        """Nodes and shards."""
        return self._send(_calls.cluster())
