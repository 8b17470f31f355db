"""Server-sent events taken apart, and a stream's chunks put together to what a whole answer says."""

import json
from typing import Any

import httpx

Json = dict[str, Any]


def events_of(text: str) -> list[tuple[str | None, str]]:
    """(id, data) of each event; anything else on a line is a mistake."""
    assert text.endswith("\n\n")
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        assert fields.keys() <= {"id", "data"}
        events.append((fields.get("id"), fields["data"]))
    return events


def chunks_of(answer: httpx.Response) -> list[Json]:
    """The chunks of a stream that ended well."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [data for _, data in events_of(answer.text)]
    assert events[-1] == "[DONE]"
    return [json.loads(data) for data in events[:-1]]


def joined_completion(chunks: list[Json]) -> Json:
    """What the same call says when it is not streamed, but for `id` and `created`."""
    _check_frame(chunks, "text_completion")
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            whole = choices.setdefault(part["index"], {"index": part["index"], "text": ""})
            assert part["text"] or part["finish_reason"], "an empty chunk"
            assert whole.get("finish_reason") is None, "a chunk after the end"
            whole["text"] += part["text"]
            _join_rest(whole, part)
    return _answer(chunks, "text_completion", choices)


def joined_chat(chunks: list[Json]) -> Json:
    """What the same call says when it is not streamed, but for `id` and `created`."""
    _check_frame(chunks, "chat.completion.chunk")
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            delta, is_first = part["delta"], part["index"] not in choices
            message = {"role": "assistant", "content": "", "refusal": None}
            whole = choices.setdefault(part["index"], {"index": part["index"], "message": message})
            assert whole.get("finish_reason") is None, "a chunk after the end"
            if is_first:
                assert delta == {"role": "assistant", "content": ""}
            else:
                assert "role" not in delta
                assert delta.get("content") or (part["finish_reason"] and not delta)
            whole["message"]["content"] += delta.get("content") or ""
            _join_rest(whole, part)
    answer = _answer(chunks, "chat.completion", choices)
    if "prompt_token_ids" in chunks[0]:
        answer["prompt_token_ids"] = chunks[0]["prompt_token_ids"]
    return answer


def _check_frame(chunks: list[Json], kind: str) -> None:
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == kind


def _join_rest(whole: Json, part: Json) -> None:
    """Fields that both routes have."""
    assert "finish_reason" in part
    whole["finish_reason"] = part["finish_reason"]
    whole.setdefault("logprobs", None)
    if part["logprobs"] is not None:
        if whole["logprobs"] is None:
            whole["logprobs"] = {k: [] for k, v in part["logprobs"].items() if v is not None}
            whole["logprobs"].update({k: None for k, v in part["logprobs"].items() if v is None})
        for name, values in part["logprobs"].items():
            if values is not None:
                whole["logprobs"][name] = whole["logprobs"][name] + values
    for name in ("token_ids",):
        if name in part:
            whole[name] = whole.get(name, []) + part[name]
    for name in ("prompt_token_ids", "stats"):
        if name in part:
            assert name not in whole, f"{name} twice"
            whole[name] = part[name]


def _answer(chunks: list[Json], kind: str, choices: dict[int, Json]) -> Json:
    """Usage comes alone, last, and only if asked for; then it is null elsewhere."""
    answer = {
        "object": kind,
        "model": chunks[0]["model"],
        "choices": [choices[index] for index in sorted(choices)],
    }
    if "usage" in chunks[0]:
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-1]["choices"] == []
        answer["usage"] = chunks[-1]["usage"]
    else:
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    return answer
