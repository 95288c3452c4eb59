"""Client-made message ids: what makes a repeated enqueue safe."""

from __future__ import annotations

import secrets
import time

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_message_id() -> str:
    """A message id of the current time and 80 random bits: `m_` and a ULID."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "m_" + "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
