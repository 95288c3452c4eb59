"""Each call of the API as a value: what to send and how to read the answer. The sync and the async client only carry it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote, urlencode

import httpx

from ._errors import AnswerLost, ConnectionFailed, InvalidRequest, OvertakeError, UnexpectedAnswer, refusal
from ._ids import new_message_id
from ._models import (
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
    Stored,
    read,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request."""

    method: str
    path: str
    parse: Callable[[Any], T]
    body: Any = None
    #: Whether it may be sent again where it is not known if it was carried out.
    repeatable: bool = False
    #: How long the server may take by itself, in seconds.
    wait_s: int = 0


def _part(text: str, field: str) -> str:
    """One part of a path. A way through folders would lead elsewhere: the path to message `..` is that of its queue, which
    a DELETE removes."""
    if text in ("", ".", ".."):
        raise InvalidRequest(400, {"field": field, "detail": f"{field} must be a name, is {text!r}"})
    return quote(text, safe="")


def _queue(name: str, rest: str = "") -> str:
    return f"/v1/queues/{_part(name, 'queue')}{rest}"


def _message(queue: str, message_id: str) -> str:
    return _queue(queue, "/messages/" + _part(message_id, "id"))


def _query(**fields: Any) -> str:
    given = {name: value for name, value in fields.items() if value is not None}
    return "?" + urlencode(given) if given else ""


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _nothing(_: Any) -> None:
    return None


def put_queue(name: str, config: QueueConfig) -> Call[QueueConfig]:
    return Call("PUT", _queue(name), lambda answer: cast(QueueConfig, answer), config, repeatable=True)


def get_queue(name: str) -> Call[QueueConfig]:
    return Call("GET", _queue(name), lambda answer: cast(QueueConfig, answer), repeatable=True)


def list_queues(limit: int | None, after: str | None) -> Call[Page[QueueListed]]:
    def parse(answer: Any) -> Page[QueueListed]:
        return Page([read(QueueListed, entry) for entry in answer["queues"]], answer["next"])

    return Call("GET", "/v1/queues" + _query(limit=limit, after=after), parse, repeatable=True)


def delete_queue(name: str) -> Call[None]:
    return Call("DELETE", _queue(name), _nothing)


def named(message: NewMessage) -> NewMessage:
    """The message with a name by which a repeat is known."""
    if message.id is None and message.dedup_key is None:
        return replace(message, id=new_message_id())
    return message


def enqueue(queue: str, message: NewMessage) -> Call[Stored]:
    path, body = _queue(queue, "/messages"), named(message).to_json()
    return Call("POST", path, lambda answer: read(Stored, answer), body, repeatable=True)


def enqueue_batch(queue: str, messages: Sequence[NewMessage]) -> Call[list[Stored | OvertakeError]]:
    def outcome(result: Any) -> Stored | OvertakeError:
        status = result["status"]
        if status == 202:
            return read(Stored, result)
        # A result does not say whether a message may be stored all the same.
        return refusal(status, {**result, "stored": "unknown"} if status == 503 else result)

    def parse(answer: Any) -> list[Stored | OvertakeError]:
        results = [outcome(result) for result in answer["results"]]
        if len(results) != len(messages):
            raise UnexpectedAnswer(f"{len(results)} results for {len(messages)} messages")
        return results

    body = {"messages": [message.to_json() for message in messages]}
    return Call("POST", _queue(queue, "/messages/batch"), parse, body, repeatable=True)


def receive(
    queue: str,
    max: int | None,
    wait_s: int | None,
    lease_s: int | None,
    max_priority: int | None,
    worker: str | None,
) -> Call[list[Message]]:
    body = _given(max=max, wait_s=wait_s, lease_s=lease_s, max_priority=max_priority, worker=worker)

    def parse(answer: Any) -> list[Message]:
        return [read(Message, message) for message in answer["messages"]]

    return Call("POST", _queue(queue, "/receive"), parse, body, repeatable=True, wait_s=wait_s or 0)


def settle(
    queue: str,
    ack: Iterable[str],
    extend: Iterable[tuple[str, int]],
    release: Iterable[str | Release],
) -> Call[dict[str, Outcome]]:
    def parse(answer: Any) -> dict[str, Outcome]:
        return {receipt: Outcome(outcome) for receipt, outcome in answer["results"].items()}

    body = {
        "ack": list(ack),
        "extend": [{"receipt": receipt, "lease_s": lease_s} for receipt, lease_s in extend],
        "release": [entry if isinstance(entry, str) else entry.to_json() for entry in release],
    }
    body = {name: entries for name, entries in body.items() if entries}
    return Call("POST", _queue(queue, "/ack"), parse, body, repeatable=True)


def stats(queue: str) -> Call[dict[str, Any]]:
    return Call("GET", _queue(queue, "/stats"), lambda answer: cast("dict[str, Any]", answer), repeatable=True)


def peek(
    queue: str, states: Iterable[State | str] | None, priority: int | None, limit: int | None, after: str | None
) -> Call[Page[PeekedMessage]]:
    def parse(answer: Any) -> Page[PeekedMessage]:
        return Page([read(PeekedMessage, entry) for entry in answer["messages"]], answer["next"])

    state = None if states is None else ",".join(State(state).value for state in states)
    query = _query(state=state, priority=priority, limit=limit, after=after)
    return Call("GET", _queue(queue, "/messages") + query, parse, repeatable=True)


def inspect(queue: str, message_id: str) -> Call[Inspected]:
    return Call("GET", _message(queue, message_id), lambda answer: read(Inspected, answer), repeatable=True)


def cancel(queue: str, message_id: str) -> Call[None]:
    return Call("DELETE", _message(queue, message_id), _nothing)


def purge(queue: str) -> Call[int]:
    return Call("POST", _queue(queue, "/purge"), lambda answer: int(answer["purged"]), {})


def dlq_list(queue: str, limit: int | None, after: str | None) -> Call[Page[DeadLetter]]:
    def parse(answer: Any) -> Page[DeadLetter]:
        return Page([read(DeadLetter, entry) for entry in answer["messages"]], answer["next"])

    return Call("GET", _queue(queue, "/dlq") + _query(limit=limit, after=after), parse, repeatable=True)


def dlq_redrive(
    queue: str,
    ids: Iterable[str] | None,
    from_priority: int | None,
    priority: int | None,
    max_per_s: int | None,
    dry_run: bool,
) -> Call[int]:
    body = _given(
        ids=None if ids is None else list(ids),
        from_priority=from_priority,
        all=True if ids is None and from_priority is None else None,
        priority=priority,
        max_per_s=max_per_s,
        dry_run=True if dry_run else None,
    )
    return Call("POST", _queue(queue, "/dlq/redrive"), lambda answer: int(answer["moved"]), body)


def dlq_purge(queue: str) -> Call[int]:
    return Call("POST", _queue(queue, "/dlq/purge"), lambda answer: int(answer["purged"]), {})


def cluster() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/cluster", lambda answer: cast("dict[str, Any]", answer), repeatable=True)


def answer_of(call: Call[T], response: httpx.Response) -> T:
    """Reads a response, or raises what it says."""
    if response.is_success:
        try:
            return call.parse(response.json() if response.content else None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnexpectedAnswer(f"{call.method} {call.path}: {error!r}") from error
    if response.headers.get("content-type", "").partition(";")[0] != "application/problem+json":
        raise UnexpectedAnswer(f"{call.method} {call.path}: {response.status_code} {response.text[:200]}")
    after = response.headers.get("retry-after", "")
    try:
        problem = response.json()
    except ValueError as error:
        raise UnexpectedAnswer(f"{call.method} {call.path}: {error!r}") from error
    raise refusal(response.status_code, problem, float(after) if after.isdigit() else None)


def error_of(error: httpx.HTTPError | httpx.InvalidURL) -> OvertakeError:
    """What an error of the HTTP library says about the request."""
    text = str(error) or type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)):
        return ConnectionFailed(text)
    if isinstance(error, httpx.InvalidURL):
        return ConnectionFailed(text)
    return AnswerLost(text)


class Tries:
    """When a call is tried again, and where: what the clients share."""

    def __init__(self, servers: int, retry_for_s: float, now: float) -> None:
        self._servers = servers
        self._give_up = now + retry_for_s
        self._step_s = 0.02
        self._tries = 0
        self._unknown: OvertakeError | None = None

    def pause(self, call: Call[Any], error: OvertakeError, now: float) -> float | None:
        """Seconds until the next try; None where there is none."""
        if error.fate_unknown and self._unknown is None:
            self._unknown = error
        if not (error.retry_is_safe or (error.fate_unknown and call.repeatable)):
            return None
        self._tries += 1
        if self._tries < self._servers:
            # The next server may serve it at once.
            return 0.0
        pause = max(self._step_s * random.uniform(0.5, 1.0), error.retry_after_s or 0.0)
        self._step_s = min(self._step_s * 2, 2.0)
        return pause if now + pause < self._give_up else None

    def verdict(self, error: OvertakeError) -> OvertakeError:
        """What is known after the last try: that it did nothing says nothing of an earlier one."""
        return self._unknown if self._unknown is not None and error.retry_is_safe else error


def latest(before: Stored | OvertakeError, now: Stored | OvertakeError) -> Stored | OvertakeError:
    """What is known of a message after another try of it."""
    if isinstance(before, OvertakeError) and before.fate_unknown:
        if isinstance(now, OvertakeError) and now.retry_is_safe:
            return before
    return now
