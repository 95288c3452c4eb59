"""Tests run against the real server; `OVERTAKE_HTTP` says where one is, or `OVERTAKE_BIN` which binary to start."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from overtake import Client


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if address := os.environ.get("OVERTAKE_HTTP"):
        yield f"http://{address}"
        return
    binary = os.environ.get("OVERTAKE_BIN", str(Path(__file__).parents[3] / "target/debug/overtake"))
    data = tmp_path_factory.mktemp("data")
    http, quic = free_address(), free_address()
    command = [binary, "serve", "--data", str(data / "d"), "--http", http, "--quic", quic, "--cores", "1", "--shards", "4"]
    with (data / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for _ in range(600):
                try:
                    if httpx.get(f"http://{http}/readyz", trust_env=False).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                assert process.poll() is None, (data / "log").read_text()
                time.sleep(0.05)
            yield f"http://{http}"
        finally:
            process.kill()


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server, timeout_s=20) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    name = f"q-{uuid.uuid4().hex}"
    client.put_queue(name, {"max_deliveries": 2})
    yield name
    client.delete_queue(name)
