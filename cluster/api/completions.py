"""`POST /v1/completions`."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from bootstrap.errors import RemoteFault
from cluster.api.answers import collect, usage_of
from cluster.api.errors import api_error
from cluster.api.intake import completion_ask
from cluster.api.schema import Completion, CompletionChoice, CompletionRequest, Usage
from cluster.api.sse import Events, event, streaming, unless_gone
from cluster.balancer.asks import Ask
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.generation import Generation

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What all parts of one answer share."""

    id: str
    created: int
    model: str

    def part(self, choices: list[CompletionChoice], usage: Usage | None = None) -> Completion:
        return Completion(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )


@router.post("/v1/completions")
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue prompts, whole or as a stream."""
    try:
        if body.stream:
            return streaming(request, await unless_gone(request, _begin(body, request)))
        answer = await unless_gone(request, _whole(body, request))
        return Response(answer.model_dump_json(), media_type="application/json")
    except RemoteFault as error:
        raise api_error(error, "prompt") from error


def _answer(body: CompletionRequest) -> _Answer:
    return _Answer(f"cmpl-{uuid.uuid4().hex}", int(time.time()), body.model)


async def _whole(body: CompletionRequest, request: Request) -> Completion:
    dispatcher: Dispatcher = request.app.state.dispatcher
    ask = await completion_ask(dispatcher, body, request.state.request_id)
    generation = await dispatcher.generate(ask)
    choices = [
        CompletionChoice(index=i, text=text, finish_reason=finish)
        for i, (text, finish) in enumerate(await collect(generation))
    ]
    return _answer(body).part(choices, usage_of(ask, generation))


async def _begin(body: CompletionRequest, request: Request) -> Events:
    dispatcher: Dispatcher = request.app.state.dispatcher
    ask = await completion_ask(dispatcher, body, request.state.request_id)
    generation = await dispatcher.generate(ask)
    events = _events(_answer(body), ask, generation, body.include_usage)
    return await Events.begin(events, generation.cancel)


async def _events(
    answer: _Answer, ask: Ask, generation: Generation, include_usage: bool
) -> AsyncIterator[bytes]:
    without = frozenset() if include_usage else frozenset({"usage"})
    async for delta in generation.deltas():
        if delta.text or delta.finish is not None:
            finish = None if delta.finish is None else delta.finish.value
            choice = CompletionChoice(index=delta.index, text=delta.text, finish_reason=finish)
            yield event(answer.part([choice]), without=without)
    if include_usage:
        yield event(answer.part([], usage_of(ask, generation)))
