"""Every call of the client, blocking and awaited, against the real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import httpx
import pytest

import overtake
from overtake import AsyncClient, Client, NewMessage, Outcome, Release, State, Stored


def test_the_blocking_client_is_made_from_the_async_one() -> None:
    import make_sync_client

    assert make_sync_client.TARGET.read_text() == make_sync_client.sync_client()


def test_bodies_are_bytes_and_everything_comes_back(client: Client, queue: str) -> None:
    body = bytes(range(256))
    stored = client.enqueue(queue, NewMessage(body, priority=1, headers={"trace": "é"}))
    assert not stored.duplicate
    [message] = client.receive(queue, max=10, wait_s=5, lease_s=60, worker="w")
    assert (message.id, message.body, message.headers, message.priority) == (stored.id, body, {"trace": "é"}, 1)
    assert message.deliveries == 1 and not message.share
    assert message.lease_expires_at - message.enqueued_at >= timedelta(seconds=60)
    assert client.stats(queue)["workers"] == {"w": 1}
    assert client.extend(queue, message.receipt, 90) == Outcome.OK
    assert client.ack(queue, message.receipt) == "ok"
    assert client.ack(queue, message.receipt) == Outcome.UNKNOWN
    assert client.receive(queue) == []


def test_a_delayed_message_waits_and_can_be_looked_at_and_cancelled(client: Client, queue: str) -> None:
    due = datetime.now(timezone.utc) + timedelta(hours=1, microseconds=1)
    stored = client.enqueue(queue, NewMessage(b"later", 0, deliver_at=due))
    seen = client.inspect(queue, stored.id)
    assert seen.state is State.DELAYED and seen.deliver_at is not None and seen.deliver_at >= due
    assert seen.deliver_at - due < timedelta(milliseconds=1)
    [peeked] = client.peek(queue, states=[State.DELAYED, "visible"], priority=0, limit=5).entries
    assert (peeked.id, peeked.body, peeked.lease_expires_at) == (stored.id, b"later", None)
    client.cancel(queue, stored.id)
    with pytest.raises(overtake.NotFound) as refused:
        client.cancel(queue, stored.id)
    assert refused.value.status == 404 and not refused.value.passes


def test_no_name_leads_elsewhere(client: Client, queue: str) -> None:
    stored = client.enqueue(queue, NewMessage(b"stays", 0))
    for name in ("", ".", ".."):
        for call in (client.cancel, client.inspect):
            with pytest.raises(overtake.InvalidRequest) as refused:
                call(queue, name)
            assert refused.value.field == "id"
        for of_queue in (client.delete_queue, client.purge, client.stats, client.get_queue):
            with pytest.raises(overtake.InvalidRequest) as refused:
                of_queue(name)
            assert refused.value.field == "queue"
    assert client.inspect(queue, stored.id).state is State.VISIBLE


def test_dead_letters_come_back(client: Client, queue: str) -> None:
    id = client.enqueue(queue, NewMessage(b"bad", 2)).id
    for _ in range(2):
        [message] = client.receive(queue, wait_s=5)
        assert client.release(queue, message.receipt, error="broken") == Outcome.OK
    while not (letters := client.dlq_list(queue).entries):
        pass
    assert (letters[0].id, letters[0].last_error, letters[0].body) == (id, "broken", b"bad")
    assert client.dlq_redrive(queue, dry_run=True) == 1
    assert client.dlq_redrive(queue, ids=[id], priority=0) == 1
    [message] = client.receive(queue, wait_s=5)
    assert (message.id, message.priority) == (id, 0)
    assert client.settle(queue, release=[Release(message.receipt, delay_s=3_600), "nonsense"]) == {
        message.receipt: Outcome.OK,
        "nonsense": Outcome.UNKNOWN,
    }
    assert client.purge(queue) == 1
    assert client.dlq_purge(queue) == 0


def test_queues_are_listed_changed_and_deleted(client: Client) -> None:
    names = sorted(f"list-{uuid.uuid4().hex}" for _ in range(3))
    for name in names:
        assert client.put_queue(name, {"levels": 3})["levels"] == 3
    assert client.put_queue(names[0], {"lease_s": 7})["lease_s"] == 7
    assert client.put_queue(names[0], {"lease_s": None})["lease_s"] == 30
    with pytest.raises(overtake.Conflict) as refused:
        client.put_queue(names[0], {"levels": 4})
    assert refused.value.field == "levels"
    listed = [entry.name for entry in client.queues()]
    assert set(names) <= set(listed) and listed == sorted(listed)
    page = client.list_queues(limit=1)
    assert len(page.entries) == 1 and page.next is not None
    for name in names:
        client.delete_queue(name)
    with pytest.raises(overtake.NotFound):
        client.get_queue(names[0])
    assert client.cluster()["nodes"]


def test_a_batch_has_an_outcome_for_each_message(client: Client, queue: str) -> None:
    key = uuid.uuid4().hex
    messages = [NewMessage(b"a", 0, dedup_key=key), NewMessage(b"b", 99), NewMessage(b"c", 0, dedup_key=key)]
    first, refused, again = client.enqueue_batch(queue, messages)
    assert isinstance(first, Stored) and isinstance(again, Stored) and again.id == first.id
    assert isinstance(refused, overtake.InvalidRequest) and refused.field == "priority"


def test_refusals_say_whether_a_retry_is_safe(client: Client, server: str) -> None:
    name = f"full-{uuid.uuid4().hex}"
    client.put_queue(name, {"max_depth": 1})
    client.enqueue(name, NewMessage(b"", 0))
    with Client(server, retry_for_s=0) as hasty, pytest.raises(overtake.LimitReached) as full:
        hasty.enqueue(name, NewMessage(b"", 0))
    assert full.value.retry_is_safe and full.value.reason == "depth" and full.value.retry_after_s is not None
    with pytest.raises(overtake.InvalidRequest) as invalid:
        client.receive(name, max=0)
    assert invalid.value.field == "max" and not invalid.value.passes
    client.delete_queue(name)


class LosingAnswers(httpx.HTTPTransport):
    """Carries every request out and loses the first so many answers."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if self.lost > 0:
            self.lost -= 1
            response.read()
            raise httpx.ReadError("lost", request=request)
        return response


def test_an_enqueue_whose_answer_is_lost_is_repeated_and_stored_once(server: str, queue: str) -> None:
    with Client(server, transport=LosingAnswers(2)) as client:
        stored = client.enqueue(queue, NewMessage(b"once", 0))
        assert stored.duplicate, "the first try had stored it"
        assert client.stats(queue)["totals"]["enqueued"] == 1
    with Client(server, transport=LosingAnswers(1)) as client:
        outcomes = client.enqueue_batch(queue, [NewMessage(b"x", 0)] * 3)
        assert all(isinstance(outcome, Stored) and outcome.duplicate for outcome in outcomes)
        assert client.stats(queue)["totals"]["enqueued"] == 4


class LosingTheFirst(httpx.HTTPTransport):
    """Carries the first request out and loses its answer; none of the others is carried out, and their answer says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first = True

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self.first:
            problem = {"content-type": "application/problem+json"}
            return httpx.Response(503, headers=problem, json={"detail": "starting"})
        self.first = False
        super().handle_request(request).read()
        raise httpx.ReadError("lost", request=request)


def test_a_refused_repeat_does_not_hide_that_the_first_try_may_have_stored_it(server: str, queue: str) -> None:
    with Client(server, transport=LosingTheFirst(), retry_for_s=0.2) as client:
        with pytest.raises(overtake.AnswerLost):
            client.enqueue(queue, NewMessage(b"x", 0))
        with pytest.raises(overtake.Unavailable) as refused:
            client.enqueue(queue, NewMessage(b"y", 0))
        assert refused.value.retry_is_safe


def test_what_may_not_be_done_twice_is_left_to_the_caller(server: str, queue: str) -> None:
    with Client(server, transport=LosingAnswers(1)) as client:
        with pytest.raises(overtake.AnswerLost) as lost:
            client.dlq_redrive(queue)
        assert lost.value.fate_unknown and not lost.value.retry_is_safe


def test_a_server_that_is_away_is_passed_over(server: str, queue: str) -> None:
    with Client("http://127.0.0.1:9", server) as client:
        for _ in range(4):
            client.enqueue(queue, NewMessage(b"", 0))
    with Client("http://127.0.0.1:9", retry_for_s=0.1) as client, pytest.raises(overtake.ConnectionFailed) as away:
        client.purge(queue)
    assert away.value.retry_is_safe


def test_a_token_is_sent(server: str, queue: str) -> None:
    seen: list[str] = []

    class Watching(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            seen.append(request.headers.get("authorization", ""))
            return super().handle_request(request)

    with Client(server, token="secret", transport=Watching()) as client:
        client.stats(queue)
    assert seen == ["Bearer secret"]


def test_an_answer_that_is_not_of_the_api_is_an_error() -> None:
    html = httpx.MockTransport(lambda request: httpx.Response(502, text="<html>bad gateway</html>"))
    with Client("http://proxy", transport=html) as client, pytest.raises(overtake.UnexpectedAnswer):
        client.get_queue("q")
    problem = httpx.Response(401, headers={"content-type": "application/problem+json"}, json={"detail": "say who"})
    with Client("http://proxy", transport=httpx.MockTransport(lambda request: problem)) as client:
        with pytest.raises(overtake.Unauthorized, match="401: say who"):
            client.get_queue("q")
    short = httpx.MockTransport(lambda request: httpx.Response(200, json={"results": []}))
    with Client("http://proxy", transport=short) as client, pytest.raises(overtake.UnexpectedAnswer):
        client.enqueue_batch("q", [NewMessage(b"", 0)])


def test_answers_of_another_shape_are_errors(client: Client, queue: str) -> None:
    good = dict(client.stats(queue))
    wrong: list[object] = [[], "stats", None, {}, {**good, "dlq": "1"}, {**good, "visible": {"p0": None}}]
    wrong += [{**good, "totals": {}}, {**good, "leased": True}, {**good, "wait_ms": {"p0": {"p50": 1}}}]
    for answer in wrong:
        canned = httpx.MockTransport(lambda request, answer=answer: httpx.Response(200, json=answer))
        with Client("http://proxy", transport=canned) as other, pytest.raises(overtake.UnexpectedAnswer):
            other.stats("q")
    more = httpx.MockTransport(lambda request: httpx.Response(200, json={**good, "new": 1}))
    with Client("http://proxy", transport=more) as other:
        assert other.stats("q")["dlq"] == good["dlq"]
    message = {"id": 5, "priority": 0, "receipt": "r", "deliveries": 1, "headers": {}, "body": ""}
    message |= {"enqueued_at": "2026-01-01T00:00:00.000Z", "lease_expires_at": "2026-01-01T00:00:00.000Z"}
    deep = httpx.Response(200, content=b"[" * 100_000, headers={"content-type": "application/json"})
    problem = httpx.Response(400, content=b"[1]", headers={"content-type": "application/problem+json"})
    for response in (httpx.Response(200, json={"messages": [message]}), deep, problem):
        canned = httpx.MockTransport(lambda request, response=response: response)
        with Client("http://proxy", transport=canned) as other, pytest.raises(overtake.UnexpectedAnswer):
            other.receive("q")
    not_base64 = {**message, "id": "m", "body": "?"}
    canned = httpx.MockTransport(lambda request: httpx.Response(200, json={"messages": [not_base64]}))
    with Client("http://proxy", transport=canned) as other, pytest.raises(overtake.UnexpectedAnswer):
        other.receive("q")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_can_be_no_server_token_or_time_is_refused_at_once(kind: type[Client] | type[AsyncClient]) -> None:
    for server in ("127.0.0.1:7401", "node1", "", "ftp://node1", "http://", "http://node1?a=b", "http://[", "http://a:b"):
        with pytest.raises(ValueError, match="must be a URL like http://node1:7401"):
            kind(server)
    with pytest.raises(ValueError, match="URL"):
        kind(None)  # type: ignore[arg-type]
    for token in ("a\r\nb: c", "with space", "é", "\ud800"):
        with pytest.raises(ValueError, match="printable ASCII") as refused:
            kind(token=token)
        assert token not in str(refused.value)
    for seconds in (float("nan"), float("inf"), -1.0, "5"):
        with pytest.raises(ValueError, match="_s must be"):
            kind(timeout_s=seconds)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="_s must be"):
            kind(retry_for_s=seconds)  # type: ignore[arg-type]


def test_what_cannot_be_sent_is_an_invalid_request(client: Client, queue: str) -> None:
    surrogate, nan, anything = "\ud800", float("nan"), cast(Any, None)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    calls: list[Callable[[], object]] = [
        lambda: client.receive(anything),
        lambda: client.receive(surrogate),
        lambda: client.receive(queue, wait_s=cast(Any, nan)),
        lambda: client.receive(queue, wait_s=cast(Any, "5")),
        lambda: client.receive(queue, wait_s=21),
        lambda: client.receive(queue, max=cast(Any, nan)),
        lambda: client.receive(queue, max=cast(Any, object())),
        lambda: client.receive(queue, worker=surrogate),
        lambda: client.put_queue(queue, {"reserve": nan}),
        lambda: client.put_queue(queue, {"reserve": float("inf")}),
        lambda: client.put_queue(queue, cast(Any, {"weights": deep})),
        lambda: client.enqueue(queue, NewMessage(cast(Any, "text"), 0)),
        lambda: client.enqueue(queue, NewMessage(b"", 0, dedup_key=surrogate)),
        lambda: client.enqueue(queue, NewMessage(b"", 0, headers={"a": surrogate})),
        lambda: client.enqueue(queue, NewMessage(b"", 0, deliver_at=datetime.max)),
        lambda: client.inspect(queue, surrogate),
        lambda: client.list_queues(after=surrogate),
        lambda: client.peek(queue, states=["nowhere"]),
        lambda: client.ack(queue, surrogate),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(overtake.InvalidRequest):
            print(number, call())


def test_a_closed_client_says_so(server: str, queue: str) -> None:
    client = Client(server)
    client.close()
    with pytest.raises(overtake.ClientClosed, match="closed"):
        client.stats(queue)

    async def session() -> None:
        async with AsyncClient(server) as client:
            pass
        with pytest.raises(overtake.ClientClosed):
            await client.stats(queue)

    asyncio.run(session())


def test_message_ids_are_ulids_of_now() -> None:
    ids = {overtake.new_message_id() for _ in range(1_000)}
    assert len(ids) == 1_000 and all(len(id) == 28 and id.startswith("m_01") for id in ids)


def test_the_async_client_does_the_same(server: str, queue: str) -> None:
    async def session() -> None:
        async with AsyncClient(server) as client:
            stored = await asyncio.gather(*(client.enqueue(queue, NewMessage(b"%d" % n, 1)) for n in range(50)))
            messages = await client.receive(queue, max=100, wait_s=5)
            while len(messages) < 50:
                messages += await client.receive(queue, max=100, wait_s=5)
            assert {message.id for message in messages} == {one.id for one in stored}
            outcomes = await client.settle(queue, ack=[message.receipt for message in messages])
            assert set(outcomes.values()) == {Outcome.OK}
            assert queue in [entry.name async for entry in client.queues()]
            with pytest.raises(overtake.NotFound):
                await client.inspect(queue, stored[0].id)

    asyncio.run(session())
