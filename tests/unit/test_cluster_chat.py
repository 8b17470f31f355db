"""The chat command against a scripted endpoint."""

import json
from collections.abc import Callable

import httpx
import pytest

from bootstrap.errors import RemoteFault
from cluster import chat as chat_module
from cluster.chat import chat, stream_chat


def sse(*events: object) -> bytes:
    lines = [e if isinstance(e, str) else json.dumps(e) for e in events]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def delta(text: str | None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


class Endpoint:
    """Answers every chat with the next of `answers`; keeps what it was asked."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, str]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        body = json.loads(request.content)
        assert body["stream"] is True
        self.asked.append(body["messages"])
        return self.answers.pop(0)


def streamed(*events: object) -> httpx.Response:
    return httpx.Response(200, content=sse(*events))


@pytest.fixture
def talk(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Endpoint, list[str], str | None], int]:
    real_client = httpx.Client

    def run(endpoint: Endpoint, lines: list[str], system: str | None) -> int:
        transport = httpx.MockTransport(endpoint)
        monkeypatch.setattr(
            httpx, "Client", lambda **options: real_client(transport=transport, **options)
        )
        said = iter(lines)
        monkeypatch.setattr(chat_module, "_read_line", lambda: next(said, None))
        return chat("http://pd", None, system)

    return run


def test_the_history_grows_by_both_sides(
    talk: Callable[[Endpoint, list[str], str | None], int], capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = Endpoint(
        streamed(delta(""), delta("Pa"), delta("ris"), "[DONE]"),
        streamed(delta("Berlin"), "[DONE]"),
    )
    assert talk(endpoint, ["France?", "", "Germany?", "/exit", "never"], "Be brief.") == 0
    system = {"role": "system", "content": "Be brief."}
    first = {"role": "user", "content": "France?"}
    assert endpoint.asked[0] == [system, first]
    assert endpoint.asked[1] == [
        system,
        first,
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "Germany?"},
    ]
    assert capsys.readouterr().out.splitlines()[-2:] == ["Paris", "Berlin"]


def test_clear_keeps_the_system_message_alone(
    talk: Callable[[Endpoint, list[str], str | None], int],
) -> None:
    endpoint = Endpoint(*[streamed(delta("x"), "[DONE]") for _ in range(2)])
    talk(endpoint, ["one", "/clear", "two"], "s")
    assert [m["content"] for m in endpoint.asked[1]] == ["s", "two"]


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx.Response(503, json={"error": {"message": "no pair"}}), "503: no pair"),
        (httpx.Response(502, text="<html>"), "502: <html>"),
        (streamed(delta("Pa"), {"error": {"message": "decode died"}}), "decode died"),
        (streamed(delta("Pa")), "the connection ended before the answer did"),
    ],
)
def test_a_fault_is_told_and_leaves_no_trace_in_the_history(
    talk: Callable[[Endpoint, list[str], str | None], int],
    capsys: pytest.CaptureFixture[str],
    response: httpx.Response,
    said: str,
) -> None:
    endpoint = Endpoint(response, streamed(delta("ok"), "[DONE]"))
    talk(endpoint, ["one", "two"], None)
    assert f"pdserve: {said}" in capsys.readouterr().err
    assert endpoint.asked[1] == [{"role": "user", "content": "two"}]


def test_no_model_is_a_remote_fault(talk: Callable[..., int]) -> None:
    client = httpx.Client(
        transport=httpx.MockTransport(lambda request: httpx.Response(503)), base_url="http://pd"
    )
    with pytest.raises(RemoteFault, match="503"), client:
        list(stream_chat(client, "m", []))
