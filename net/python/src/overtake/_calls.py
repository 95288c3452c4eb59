"""Each call of the API as a value: what to send and how to read the answer. The sync and the async client only carry it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import httpx

from ._errors import AnswerLost, ConnectionFailed, OvertakeError, UnexpectedAnswer, refusal, wrong
from ._ids import new_message_id
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
    read,
)
from ._shape import check

T = TypeVar("T")

#: Longest wait of a receive, in seconds.
WAIT_S_MAX = 20


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
    if not isinstance(text, str) or text in ("", ".", ".."):
        raise wrong(field, f"{field} must be a name, is {text!r}")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise wrong(field, f"{field} is no text: {error}") from error


def _queue(name: str, rest: str = "") -> str:
    return f"/v1/queues/{_part(name, 'queue')}{rest}"


def _message(queue: str, message_id: str) -> str:
    return _queue(queue, "/messages/" + _part(message_id, "id"))


def _query(**fields: Any) -> str:
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return "?" + urlencode(given) if given else ""
    except UnicodeEncodeError as error:
        raise wrong(None, f"a parameter is no text: {error}") from error


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _checked(kind: type[T]) -> Callable[[Any], T]:
    """Reads an answer that is given on as it is."""

    def parse(answer: Any) -> T:
        check(answer, kind, "the answer")
        return cast(T, answer)

    return parse


def _nothing(_: Any) -> None:
    return None


def server(url: str) -> str:
    """Where a server is, as paths are put behind it. Raises `ValueError`."""
    parsed = httpx.URL("")
    try:
        # Knows brackets that are not closed, which httpx takes for a host.
        urlsplit(url)
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError, AttributeError):
        pass
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise ValueError(f"a server must be a URL like http://node1:7401, is {url!r}")
    return url.rstrip("/")


def seconds(number: float, name: str) -> float:
    """A time that can be waited for. Raises `ValueError`."""
    if not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, is {number!r}")
    return number


def authorization(token: str | None) -> dict[str, str]:
    """The header that shows a token. Raises `ValueError`; the text does not repeat what may be a secret."""
    if not token:
        return {}
    if not isinstance(token, str) or not all("!" <= character <= "~" for character in token):
        raise ValueError("a token must be printable ASCII without spaces or line ends")
    return {"authorization": f"Bearer {token}"}


def encoded(call: Call[Any]) -> tuple[bytes | None, dict[str, str]]:
    """The body of a request, and its headers."""
    if call.body is None:
        return None, {}
    try:
        text = json.dumps(call.body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8"), {"content-type": "application/json"}
    except (ValueError, TypeError, RecursionError) as error:
        raise wrong(None, f"the request cannot be written as JSON: {error}") from error


def put_queue(name: str, config: QueueConfig) -> Call[QueueConfig]:
    return Call("PUT", _queue(name), _checked(QueueConfig), config, repeatable=True)


def get_queue(name: str) -> Call[QueueConfig]:
    return Call("GET", _queue(name), _checked(QueueConfig), repeatable=True)


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
    if wait_s is not None and (not isinstance(wait_s, int) or not 0 <= wait_s <= WAIT_S_MAX):
        raise wrong("wait_s", f"wait_s must be 0..={WAIT_S_MAX}, is {wait_s!r}")
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


def stats(queue: str) -> Call[Stats]:
    return Call("GET", _queue(queue, "/stats"), _checked(Stats), repeatable=True)


def peek(
    queue: str, states: Iterable[State | str] | None, priority: int | None, limit: int | None, after: str | None
) -> Call[Page[PeekedMessage]]:
    def parse(answer: Any) -> Page[PeekedMessage]:
        return Page([read(PeekedMessage, entry) for entry in answer["messages"]], answer["next"])

    try:
        state = None if states is None else ",".join(State(state).value for state in states)
    except ValueError as error:
        raise wrong("state", str(error)) from error
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


def cluster() -> Call[Cluster]:
    return Call("GET", "/v1/cluster", _checked(Cluster), repeatable=True)


def answer_of(call: Call[T], response: httpx.Response) -> T:
    """Reads a response, or raises what it says."""
    if response.is_success:
        try:
            return call.parse(response.json() if response.content else None)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UnexpectedAnswer(f"{call.method} {call.path}: {error!r}") from error
    if response.headers.get("content-type", "").partition(";")[0] != "application/problem+json":
        raise UnexpectedAnswer(f"{call.method} {call.path}: {response.status_code} {response.text[:200]}")
    after = response.headers.get("retry-after", "")
    try:
        problem = response.json()
        check(problem, dict[str, Any], "the problem")
    except (ValueError, TypeError, RecursionError) as error:
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
