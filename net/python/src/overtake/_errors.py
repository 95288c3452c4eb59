"""What can go wrong, told apart by what is known about the request: refused, never sent, or of unknown fate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OvertakeError(Exception):
    """Base of all errors of this package."""

    #: Nothing was done, and the same request may succeed later, whatever it is.
    retry_is_safe: bool = False
    #: The request may have been carried out. A repeat is safe where doing it twice does no harm: an enqueue with an `id`
    #: or a `dedup_key`, a settle, a look.
    fate_unknown: bool = False
    #: How long the server asks to wait before the next try, in seconds.
    retry_after_s: float | None = None

    @property
    def passes(self) -> bool:
        """Whether a request that may be done twice is worth another try."""
        return self.retry_is_safe or self.fate_unknown


class ConnectionFailed(OvertakeError):
    """No server could be reached: nothing was sent."""

    retry_is_safe = True


class AnswerLost(OvertakeError):
    """The connection was lost, or no answer came in time: the request may have been carried out."""

    fate_unknown = True


class ClientClosed(OvertakeError):
    """The client was closed before the call: nothing was sent."""


class UnexpectedAnswer(OvertakeError):
    """The answer is not one of the API: a proxy in between, or a server of another kind."""


class Refused(OvertakeError):
    """The server refused the request and said why, in a problem document (RFC 9457)."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        self.status = status
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        #: Name of the field at fault, where one is.
        self.field: str | None = problem.get("field")
        #: `depth` or `rate`, where a limit was reached.
        self.reason: str | None = problem.get("reason")
        self.retry_after_s = retry_after_s
        super().__init__(f"{status}: {self.detail or self.title}")


class InvalidRequest(Refused):
    """Malformed, missing, out of range or too large (400, 413, 415); `field` and `detail` say what is allowed."""


class Unauthorized(Refused):
    """No token, or an unknown one (401)."""


class Forbidden(Refused):
    """The token lacks the right (403)."""


class NotFound(Refused):
    """No such queue or message (404)."""


class Conflict(Refused):
    """Contradicts the state: a field that cannot change, a message that is leased (409)."""


class LimitReached(Refused):
    """The queue is full, or the rate is over its limit (429)."""

    retry_is_safe = True


class Unavailable(Refused):
    """No leader, no quorum, stopping (503), or no room on the disk (507)."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        super().__init__(status, problem, retry_after_s)
        self.fate_unknown = problem.get("stored") == "unknown"
        self.retry_is_safe = not self.fate_unknown


class ServerError(Refused):
    """A fault of the server (500)."""


_BY_STATUS: dict[int, type[Refused]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: InvalidRequest,
    415: InvalidRequest,
    429: LimitReached,
    500: ServerError,
    503: Unavailable,
    507: Unavailable,
}


def refusal(status: int, problem: Mapping[str, Any], retry_after_s: float | None = None) -> Refused:
    """The error that belongs to a status."""
    return _BY_STATUS.get(status, Refused)(status, problem, retry_after_s)


def wrong(field: str | None, detail: str) -> InvalidRequest:
    """The error of a request that can be seen to be wrong before it is sent."""
    return InvalidRequest(400, {"field": field, "detail": detail} if field else {"detail": detail})
