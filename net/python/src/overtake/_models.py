"""What goes in and out, as plain values. Field names are those of the HTTP API; bodies are bytes."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args

from ._errors import wrong
from ._shape import check, hints

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Members are their values."""


T = TypeVar("T")


class Outcome(StrEnum):
    """What became of one receipt."""

    #: Done.
    OK = "ok"
    #: The message is there, but this is not its current lease.
    STALE = "stale"
    #: No such message any more, or not a receipt.
    UNKNOWN = "unknown"


class State(StrEnum):
    """Where a message is."""

    VISIBLE = "visible"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"


class Backoff(TypedDict):
    """Delay before a failed delivery returns."""

    first_s: int
    factor: float
    max_s: int


class QueueConfig(TypedDict, total=False):
    """Configuration of a queue. In a change only what is named changes, and `None` puts a field back to its default."""

    levels: int | None
    shards: int | None
    scheduling: Literal["weighted", "strict", "aging"] | None
    weights: list[float] | None
    reserve: float | None
    floor: float | None
    aging_s: int | None
    max_deliveries: int | None
    lease_s: int | None
    dedup_window_s: int | None
    retention_s: int | None
    max_depth: int | None
    max_bytes: int | None
    rate_caps: dict[str, int] | None
    dead_letter_expired: bool | None
    backoff: Backoff | None
    starvation_s: int | list[int] | None


class Waits(TypedDict):
    """Milliseconds from first visibility to first delivery, over the last minutes."""

    p50: float
    p99: float
    p999: float


class Totals(TypedDict):
    """Counts since the queue was created."""

    enqueued: int
    acked: int
    cancelled: int
    purged: int
    expired: int
    dead_lettered: int
    redriven: int
    deliveries: int
    share_deliveries: int
    inversions: int
    lease_expirations: int
    releases: int
    stale_receipts: int
    starvation_events: int
    #: Messages by reason: `depth`, `bytes`, `rate`, `disk`, `no_quorum`.
    refused: dict[str, int]


class Stats(TypedDict):
    """Numbers of a queue; levels are `p0`, `p1`, …"""

    visible: dict[str, int]
    delayed: dict[str, int]
    leased_by_level: dict[str, int]
    leased: int
    dlq: int
    oldest_age_s: dict[str, float | None]
    #: None of a level without any delivery.
    wait_ms: dict[str, Waits | None]
    totals: Totals
    #: Leased messages by the label of who has them.
    workers: dict[str, int]


class ClusterNode(TypedDict):
    """One node."""

    id: int
    zone: str
    http: str
    alive: bool


class ClusterShard(TypedDict):
    """One shard."""

    shard: int
    leader: int | None
    replicas: list[int]


class Cluster(TypedDict):
    """Nodes and shards."""

    nodes: list[ClusterNode]
    shards: list[ClusterShard]


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store."""

    body: bytes
    priority: int
    #: Not to be delivered before; in the past means now.
    deliver_at: datetime | None = None
    delay_s: int | None = None
    dedup_key: str | None = None
    expires_in_s: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Client-made id; one is made where neither this nor `dedup_key` is given, so that a repeat stores nothing twice.
    id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the API takes it."""
        if not isinstance(self.body, (bytes, bytearray, memoryview)):
            raise wrong("body", f"body must be bytes, is {type(self.body).__name__}; text: text.encode()")
        deliver_at = None
        if self.deliver_at is not None:
            # A naive time is local time, as everywhere in `datetime`. Never before the time: rounded up.
            try:
                since = self.deliver_at.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
            except (OverflowError, ValueError) as error:
                raise wrong("deliver_at", f"deliver_at is no time that can be sent: {error}") from error
            deliver_at = -(-since // timedelta(milliseconds=1))
        fields: dict[str, Any] = {
            "body": base64.b64encode(self.body).decode("ascii"),
            "priority": self.priority,
            "deliver_at": deliver_at,
            "delay_s": self.delay_s,
            "dedup_key": self.dedup_key,
            "expires_in_s": self.expires_in_s,
            "headers": dict(self.headers) or None,
            "id": self.id,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored message, or the first one that its dedup key or id names."""

    id: str
    shard: int
    #: The dedup window answered, and nothing was stored.
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A delivered message, leased until `lease_expires_at`."""

    id: str
    priority: int
    receipt: str
    deliveries: int
    enqueued_at: datetime
    lease_expires_at: datetime
    headers: dict[str, str]
    body: bytes
    #: Given to a share while something more urgent was visible.
    share: bool = False


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message seen without leasing it."""

    id: str
    priority: int
    state: State
    deliveries: int
    enqueued_at: datetime
    deliver_at: datetime | None
    lease_expires_at: datetime | None
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Inspected:
    """Where a message is, and why it has not been delivered."""

    id: str
    priority: int
    state: State
    shard: int
    enqueued_at: datetime
    deliver_at: datetime | None
    lease_expires_at: datetime | None
    worker: str | None
    deliveries: int
    #: Visible messages of its shard that are more urgent or before it.
    ahead: int | None
    why: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed too often, or expired."""

    id: str
    priority: int
    deliveries: int
    last_error: str
    dead_at: datetime
    #: The last ten deliveries as the API shows them.
    history: list[dict[str, Any]]
    enqueued_at: datetime
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class QueueListed:
    """One queue of a listing."""

    name: str
    config: QueueConfig
    #: Visible, delayed and leased.
    depth: int


@dataclass(frozen=True, slots=True)
class Release:
    """Gives a lease back."""

    receipt: str
    #: When it may be delivered again; the queue's back-off (or at once) where absent.
    delay_s: int | None = None
    #: Kept with the message.
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the API takes it."""
        fields = {"receipt": self.receipt, "delay_s": self.delay_s, "error": self.error}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing; pass `next` as `after` for the one behind it."""

    entries: list[T]
    next: str | None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


_READERS: dict[str, Callable[[Any], Any]] = {
    "enqueued_at": _time,
    "lease_expires_at": _time,
    "deliver_at": _time,
    "dead_at": _time,
    "state": State,
    "body": lambda text: base64.b64decode(text, validate=True),
}


def read(kind: type[T], fields: Mapping[str, Any]) -> T:
    """A value of a dataclass from the API's fields; absent ones are None, unknown ones of a newer server left out."""
    values: dict[str, Any] = {}
    described = hints(kind)
    for name, field_type in described.items():
        value = fields.get(name)
        if value is not None and name in _READERS:
            value = _READERS[name](value)
        if name in fields or type(None) in get_args(field_type):
            check(value, field_type, name)
            values[name] = value
    return kind(**values)
