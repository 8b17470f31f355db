"""Streams over real HTTP: their frame, their end, errors on the way, and coming back to one."""

import json
import socket
from collections.abc import Iterator

import pytest

from bootstrap.messages import FailureReason
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, TEXT
from tests.support.streams import chunks_of, events_of
from tests.support.waiting import wait_for

cluster = balancer_cluster.cluster
ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster
tokenizer = balancer_cluster.tokenizer

CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Say it."}], "stream": True}
RESUMABLE = {**BODY, "stream_options": {"resumable": True}}


def text_of(events: list[tuple[str | None, str]]) -> str:
    chunks = [json.loads(data) for _, data in events if data != "[DONE]"]
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


class Lines:
    """A stream that is read event by event and left at will."""

    def __init__(self, cluster, body, headers=None) -> None:
        self._manager = cluster.http.stream("POST", CHAT, json=body, headers=headers)
        self.answer = self._manager.__enter__()
        self._blocks = self._read()

    def _read(self) -> Iterator[str]:
        text = ""
        for piece in self.answer.iter_text():
            text += piece
            while "\n\n" in text:
                block, _, text = text.partition("\n\n")
                yield block + "\n\n"

    def take(self, num: int) -> list[tuple[str | None, str]]:
        return [events_of(next(self._blocks))[0] for _ in range(num)]

    def rest(self) -> list[tuple[str | None, str]]:
        return [event for block in self._blocks for event in events_of(block)]

    def leave(self) -> None:
        self._manager.__exit__(None, None, None)


def test_plain_streams_have_no_event_ids(cluster) -> None:
    answer = cluster.http.post(CHAT, json=BODY)
    events = events_of(answer.text)
    assert {event_id for event_id, _ in events} == {None}
    assert text_of(events) == TEXT
    assert answer.headers["cache-control"] == "no-cache"


def test_event_ids_carry_the_answer_and_the_position(cluster) -> None:
    answer = cluster.http.post(CHAT, json=RESUMABLE)
    events = events_of(answer.text)
    name = json.loads(events[0][1])["id"]
    assert [event_id for event_id, _ in events] == [f"{name}-{i}" for i in range(len(events))]
    assert events[-1][1] == "[DONE]"
    assert text_of(events) == TEXT


@pytest.mark.parametrize("num_read", [1, 2])
def test_a_client_that_lost_its_connection_reads_on_where_it_was(cluster, num_read, ids) -> None:
    cluster.d.limit = 8
    first = Lines(cluster, RESUMABLE, {"X-Request-Id": "lost"})
    begun = first.take(num_read)
    first.leave()
    # What was read may all be of the first token, which comes from prefill alone.
    (dispatch,) = wait_for(lambda: cluster.d.of("lost"), what="a dispatch")
    cluster.d.release()
    again = Lines(cluster, RESUMABLE, {"Last-Event-ID": begun[-1][0]})
    events = begun + again.rest()
    again.leave()
    assert dispatch.room not in cluster.d.aborts
    assert text_of(events) == TEXT
    assert events[-1][1] == "[DONE]"
    positions = [int(event_id.rpartition("-")[2]) for event_id, _ in events]
    assert positions == list(range(len(events)))
    replayed = Lines(cluster, RESUMABLE, {"Last-Event-ID": begun[0][0]})
    assert begun[:1] + replayed.rest() == events
    replayed.leave()


def test_a_second_reader_ends_the_first(cluster) -> None:
    cluster.d.limit = 3
    first = Lines(cluster, RESUMABLE)
    begun = first.take(2)
    second = Lines(cluster, RESUMABLE, {"Last-Event-ID": begun[0][0]})
    second.take(1)
    assert "[DONE]" not in [data for _, data in first.rest()]
    cluster.d.release()
    assert second.rest()[-1][1] == "[DONE]"
    first.leave()
    second.leave()


def test_without_the_wish_to_resume_a_client_that_leaves_ends_the_work(cluster) -> None:
    cluster.d.limit = 3
    stream = Lines(cluster, BODY, {"X-Request-Id": "leaver"})
    stream.take(2)
    stream.leave()
    (dispatch,) = wait_for(lambda: cluster.d.of("leaver"), what="a dispatch")
    cancelled = FailureReason.CANCELLED
    wait_for(lambda: cluster.d.aborts.get(dispatch.room) is cancelled, what="an abort")


def test_an_error_after_the_first_byte_is_the_last_event(cluster) -> None:
    cluster.d.limit = 3
    stream = Lines(cluster, BODY)
    begun = stream.take(2)
    cluster.d.leave()
    events = stream.rest()
    stream.leave()
    error = json.loads(events[-1][1])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "service_unavailable_error"
    finishes = [json.loads(data)["choices"][0]["finish_reason"] for _, data in begun + events[:-1]]
    assert set(finishes) == {None}


def test_the_connection_is_closed_after_an_error_event(cluster) -> None:
    cluster.d.limit = 3
    host, port = cluster.url.removeprefix("http://").split(":")
    raw = json.dumps(BODY).encode()
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        seen = connection.recv(1 << 16)
        while b'"content":"T' not in seen:
            seen += connection.recv(1 << 16)
        cluster.d.leave()
        while b'"error"' not in seen:
            seen += connection.recv(1 << 16)
        assert b"[DONE]" not in seen
        rest = b""
        while piece := connection.recv(1 << 16):  # ends only when the server closes
            rest += piece
        assert b"data:" not in rest


def test_a_resumed_stream_tells_the_same_error(cluster) -> None:
    cluster.d.limit = 3
    # The server closes this connection: the client must not keep it for what comes next.
    stream = Lines(cluster, RESUMABLE, {"Connection": "close"})
    begun = stream.take(2)
    cluster.d.leave()
    events = stream.rest()
    stream.leave()
    again = Lines(cluster, RESUMABLE, {"Last-Event-ID": begun[-1][0]})
    assert again.rest() == events
    again.leave()


def test_the_stream_interval_joins_events(make_cluster, ids) -> None:
    cluster = make_cluster(stream_interval=10)
    cluster.pair()
    cluster.wait_ready()
    answer = cluster.http.post(CHAT, json=BODY)
    chunks = chunks_of(answer)
    contents = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert "".join(content or "" for content in contents) == TEXT
    assert len(chunks) <= len(ids) // 10 + 4


def test_choices_of_one_stream_interleave_whole(cluster) -> None:
    body = {**BODY, "n": 3, "stream_options": {"include_usage": True}}
    chunks = chunks_of(cluster.http.post(CHAT, json=body))
    texts, ends = ["", "", ""], []
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert texts == [TEXT] * 3
    assert sorted(ends) == [0, 1, 2]


def test_what_fails_before_the_first_byte_has_a_status(cluster) -> None:
    cluster.d.refuse = cluster.p.refuse = FailureReason.BAD_REQUEST
    answer = cluster.http.post(CHAT, json=BODY)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "by script" not in answer.text


def test_one_line_of_the_log_says_how_it_went(cluster, caplog) -> None:
    with caplog.at_level("INFO", logger="cluster.balancer.timelines"):
        cluster.http.post(CHAT, json=BODY, headers={"X-Request-Id": "logged"})
        wait_for(lambda: any("logged" in r.getMessage() for r in caplog.records), what="a line")
    (line,) = [r.getMessage() for r in caplog.records if "logged" in r.getMessage()]
    assert line.startswith("request logged ended: stop tokens=")
    assert "ttft_s=" in line
