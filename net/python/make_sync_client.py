"""Writes the blocking client from the async one, which is the source of both: `python make_sync_client.py`."""

from pathlib import Path

SOURCE = Path(__file__).parent / "src/overtake/_async_client.py"
TARGET = SOURCE.with_name("_client.py")

REPLACEMENTS = [
    (
        '"""The client that is awaited; `make_sync_client.py` makes the one that blocks from it."""',
        '"""The client that blocks. Made from `_async_client.py` by `make_sync_client.py`: change it there."""',
    ),
    ("Tasks of one event loop may share one; used as an async context\n    manager", "Threads may share one; used as a context manager"),
    ("import asyncio\n", ""),
    ("asyncio.sleep", "time.sleep"),
    ("AsyncIterator", "Iterator"),
    ("AsyncBaseTransport", "BaseTransport"),
    ("AsyncClient", "Client"),
    ("async def", "def"),
    ("await ", ""),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("aclose", "close"),
]


def sync_client() -> str:
    """The text of the blocking client."""
    text = SOURCE.read_text()
    for before, after in REPLACEMENTS:
        assert before in text, before
        text = text.replace(before, after)
    return text


if __name__ == "__main__":
    TARGET.write_text(sync_client())
