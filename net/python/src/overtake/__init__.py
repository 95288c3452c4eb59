"""Python client of Overtake, a durable priority queue, over its HTTP API.

`Client` and `AsyncClient` have a method for each call of the API; `Worker` and `AsyncWorker` hand messages to a function,
keep their leases while it works, and ack or release them. Everything that can go wrong is an `OvertakeError`, which says
whether a retry is safe.
"""

from ._async_client import AsyncClient
from ._client import Client
from ._errors import (
    AnswerLost,
    Conflict,
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    LimitReached,
    NotFound,
    OvertakeError,
    Refused,
    ServerError,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
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
)
from ._worker import AsyncWorker, Report, RetryAfter, Worker

__all__ = [
    "AnswerLost",
    "AsyncClient",
    "AsyncWorker",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "DeadLetter",
    "Forbidden",
    "Inspected",
    "InvalidRequest",
    "LimitReached",
    "Message",
    "NewMessage",
    "NotFound",
    "Outcome",
    "OvertakeError",
    "Page",
    "PeekedMessage",
    "QueueConfig",
    "QueueListed",
    "Refused",
    "Release",
    "Report",
    "RetryAfter",
    "ServerError",
    "State",
    "Stored",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "Worker",
    "new_message_id",
]
