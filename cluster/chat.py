"""`pdserve chat`: a conversation in the terminal, streamed from any pdserve endpoint.

Owns the history and the screen. It speaks the OpenAI API and knows nothing else of the cluster.
"""

import json
import sys
from collections.abc import Iterator

import httpx

from bootstrap.errors import RemoteFault
from cluster.endpoint import choose_url, error_message, key_header

# Between two pieces of a stream; the server ends requests at their own deadline.
_TIMEOUT = httpx.Timeout(120.0, connect=5.0)
_HINT = "/exit or Ctrl-D ends, /clear forgets the conversation, Ctrl-C stops an answer.\n"

Message = dict[str, str]


def chat(url: str | None, model: str | None, system: str | None) -> int:
    """Talk until /exit or the end of input; the exit code."""
    base_url = choose_url(url)
    with httpx.Client(base_url=base_url, timeout=_TIMEOUT, headers=key_header()) as client:
        name = model or _first_model(client)
        if sys.stdin.isatty():
            print(f"{name} at {base_url}. {_HINT}")
        _converse(client, name, [{"role": "system", "content": system}] if system else [])
    return 0


def _converse(client: httpx.Client, model: str, opening: list[Message]) -> None:
    history = list(opening)
    while (line := _read_line()) is not None:
        if line in ("/exit", "/quit"):
            return
        if line == "/clear":
            history = list(opening)
        elif line:
            asked: Message = {"role": "user", "content": line}
            answer = _answer(client, model, [*history, asked])
            if answer:  # what was said until Ctrl-C is part of the conversation, a fault is not
                history += [asked, {"role": "assistant", "content": answer}]


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print()
        return ""


def _answer(client: httpx.Client, model: str, messages: list[Message]) -> str:
    """Print the answer as it comes; what was printed."""
    said: list[str] = []
    try:
        for text in stream_chat(client, model, messages):
            said.append(text)
            print(text, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")  # leaving the stream closes the connection, which cancels
    except (RemoteFault, httpx.HTTPError) as error:
        print(f"pdserve: {error}", file=sys.stderr)
        return ""
    print()
    return "".join(said)


def stream_chat(client: httpx.Client, model: str, messages: list[Message]) -> Iterator[str]:
    """The pieces of one answer; raises RemoteFault for an error before or within the stream."""
    body = {"model": model, "messages": messages, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise RemoteFault(f"{response.status_code}: {error_message(response.text)}")
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise RemoteFault(error_message(data))
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""
    raise RemoteFault("the connection ended before the answer did")


def _first_model(client: httpx.Client) -> str:
    try:
        response = client.get("/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise RemoteFault(f"no model at {client.base_url}: {error}") from error
