"""The examples of the README, as they stand there, against the real server."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

from overtake import Client, NewMessage

EXAMPLES = re.findall(r"^```python\n(.*?)^```", (Path(__file__).parents[1] / "README.md").read_text(), re.M | re.S)
#: Where the README takes a server to be, and its token.
ELSEWHERE = re.compile(r'Client\("http.*?\)')


def run(example: str, server: str, queue: str, **names: Any) -> None:
    here, replaced = ELSEWHERE.subn(f'Client("{server}")', example)
    assert replaced == 1
    exec(compile(here.replace('"mail"', repr(queue)), "README.md", "exec"), names)


def test_all_examples_are_run() -> None:
    assert len(EXAMPLES) == 3


def test_store_and_receive(client: Client, queue: str, server: str) -> None:
    run(EXAMPLES[0], server, queue)
    assert client.stats(queue)["totals"]["acked"] == 1
    assert client.get_queue(queue)["max_deliveries"] == 10


def test_the_async_client(client: Client, queue: str, server: str) -> None:
    run(EXAMPLES[1], server, queue)
    assert client.stats(queue)["visible"]["p2"] == 100


def test_work(client: Client, queue: str, server: str) -> None:
    client.enqueue_batch(queue, [NewMessage(b"hello", 0), NewMessage(b"later", 1)])
    sent: list[bytes] = []
    before = signal.getsignal(signal.SIGTERM)

    def send_mail(body: bytes) -> None:
        sent.append(body)

    def end() -> None:
        while (stats := client.stats(queue))["totals"]["acked"] == 0 or not any(stats["delayed"].values()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end).start()
    busy = iter([False, True])
    try:
        run(EXAMPLES[2], server, queue, send_mail=send_mail, mail_server_is_busy=lambda: next(busy))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(sent) == 1
