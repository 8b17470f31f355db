"""`POST /v1/chat/completions`."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from bootstrap.errors import RemoteFault
from cluster.api.answers import collect, usage_of
from cluster.api.errors import api_error
from cluster.api.intake import chat_ask
from cluster.api.schema import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    Usage,
)
from cluster.api.sse import Events, event, streaming, unless_gone
from cluster.balancer.asks import Ask
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.generation import Generation

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What all chunks of one answer share."""

    id: str
    created: int
    model: str
    include_usage: bool

    def chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> bytes:
        chunk = ChatCompletionChunk(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )
        return event(chunk, without=frozenset() if self.include_usage else frozenset({"usage"}))

    def delta(self, index: int, delta: ChatDelta, finish: str | None = None) -> bytes:
        return self.chunk([ChatChunkChoice(index=index, delta=delta, finish_reason=finish)])


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    try:
        if body.stream:
            return streaming(request, await unless_gone(request, _begin(body, request)))
        answer = await unless_gone(request, _whole(body, request))
        return Response(answer.model_dump_json(), media_type="application/json")
    except RemoteFault as error:
        raise api_error(error, "messages") from error


def _answer(body: ChatCompletionRequest) -> _Answer:
    name = f"chatcmpl-{uuid.uuid4().hex}"
    return _Answer(name, int(time.time()), body.model, body.include_usage)


async def _whole(body: ChatCompletionRequest, request: Request) -> ChatCompletion:
    dispatcher: Dispatcher = request.app.state.dispatcher
    ask = await chat_ask(dispatcher, body, request.state.request_id)
    generation = await dispatcher.generate(ask)
    choices = [
        ChatChoice(index=i, message=AssistantMessage(content=text), finish_reason=finish)
        for i, (text, finish) in enumerate(await collect(generation))
    ]
    answer = _answer(body)
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=answer.model,
        choices=choices,
        usage=usage_of(ask, generation),
    )


async def _begin(body: ChatCompletionRequest, request: Request) -> Events:
    dispatcher: Dispatcher = request.app.state.dispatcher
    ask = await chat_ask(dispatcher, body, request.state.request_id)
    generation = await dispatcher.generate(ask)
    events = _events(_answer(body), ask, generation)
    return await Events.begin(events, generation.cancel)


async def _events(answer: _Answer, ask: Ask, generation: Generation) -> AsyncIterator[bytes]:
    greeted: set[int] = set()
    async for delta in generation.deltas():
        if delta.index not in greeted:
            greeted.add(delta.index)
            yield answer.delta(delta.index, ChatDelta(role="assistant", content=""))
        if delta.text:
            yield answer.delta(delta.index, ChatDelta(content=delta.text))
        if delta.finish is not None:
            yield answer.delta(delta.index, ChatDelta(), delta.finish.value)
    if answer.include_usage:
        yield answer.chunk([], usage_of(ask, generation))
