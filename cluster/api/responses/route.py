"""`POST /v1/responses`: a conversation in, an answer of items out, whole or as a stream of events."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from bootstrap.errors import RemoteFault
from bootstrap.sampling import FinishReason
from cluster.api.answers import usage_of
from cluster.api.chat_plan import plan_chat
from cluster.api.errors import ApiError, api_error, invalid_body
from cluster.api.intake import chat_ask
from cluster.api.request_ids import CallName
from cluster.api.responses.answer import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseObject,
    ResponseUsage,
)
from cluster.api.responses.building import Building, Event
from cluster.api.responses.request import FunctionChoice, ResponseRequest, TextSettings
from cluster.api.schema import ChatCompletionRequest
from cluster.api.shaper import Shaper
from cluster.api.sse import Events, one_line, streaming, unless_gone
from cluster.balancer.asks import Ask
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.generation import Generation

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Work:
    """An answer in the making, read once."""

    building: Building
    ask: Ask
    generation: Generation
    shaper: Shaper

    async def events(self) -> AsyncIterator[Event]:
        """All events; raises GenerationFailed."""
        building, cut_off = self.building, False
        begun = False
        async for delta in self.generation.deltas():
            if not begun:  # not earlier: what fails before the first token has a status of its own
                begun = True
                for event in building.begin():
                    yield event
            pieces = self.shaper.push(delta.text)
            if delta.finish is not None:
                cut_off = delta.finish is FinishReason.LENGTH
                pieces += self.shaper.finish()
            for event in building.add(pieces):
                yield event
        for event in building.end(self._usage(), cut_off=cut_off):
            yield event

    async def encoded(self) -> AsyncIterator[bytes]:
        """Server-sent events; what fails after the first is the last one."""
        begun = False
        try:
            async for event in self.events():
                yield _encoded(event)
                begun = True
        except RemoteFault as error:
            if not begun:
                raise
            yield _encoded(self.building.failed(api_error(error).body["error"]))

    def _usage(self) -> ResponseUsage:
        usage = usage_of(self.ask, self.generation)
        cached = usage.prompt_tokens_details.cached_tokens
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=usage.total_tokens,
        )


@router.post("/v1/responses")
async def create_response(body: ResponseRequest, request: Request) -> Response:
    """Answer a conversation that comes whole with every call."""
    try:
        if body.stream:
            events = await unless_gone(request, _stream(body, request))
            return streaming(request, events, resumable=False)
        answer = await unless_gone(request, _whole(body, request))
        return Response(answer.model_dump_json(), media_type="application/json")
    except RemoteFault as error:
        raise _renamed(api_error(error, "input")) from error


async def _whole(body: ResponseRequest, request: Request) -> ResponseObject:
    work = await _begin(body, request)
    async for _ in work.events():
        pass
    return work.building.response


async def _stream(body: ResponseRequest, request: Request) -> Events:
    work = await _begin(body, request)
    name, cancel = work.building.response.id, work.generation.cancel
    return await Events.begin(name, work.encoded(), cancel, last=())


async def _begin(body: ResponseRequest, request: Request) -> _Work:
    dispatcher: Dispatcher = request.app.state.dispatcher
    try:
        chat = ChatCompletionRequest.model_validate(body.as_chat())
    except ValidationError as error:
        raise invalid_body(error.errors()) from error
    plan = plan_chat(dispatcher, chat)
    ask = await chat_ask(dispatcher, chat, CallName.new(request, "resp_"), plan)
    generation = await dispatcher.generate(ask)
    shaper = plan.rules(dispatcher, ask.prompts[0]).shaper()
    return _Work(Building(_empty_response(body, ask.answer_id)), ask, generation, shaper)


def _empty_response(body: ResponseRequest, name: str) -> ResponseObject:
    choice = body.tool_choice or "auto"
    text = body.text or TextSettings()
    return ResponseObject(
        id=name,
        created_at=int(time.time()),
        model=body.model,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        temperature=1.0 if body.temperature is None else body.temperature,
        text={"format": text.format.model_dump(by_alias=True, exclude_none=True)},
        tool_choice=choice.model_dump() if isinstance(choice, FunctionChoice) else choice,
        tools=[tool.model_dump() for tool in body.tools or ()],
        top_p=1.0 if body.top_p is None else body.top_p,
        user=body.user,
    )


_NAMES = {
    "messages": "input",
    "response_format": "text",
    "max_completion_tokens": "max_output_tokens",
}


def _renamed(error: ApiError) -> ApiError:
    """The same error in this route's words."""
    theirs = error.param
    if theirs not in _NAMES:
        return error
    ours = _NAMES[theirs]
    text = str(error).replace(f"'{theirs}", f"'{ours}")
    return ApiError(error.status, text, param=ours, code=error.code)


def _encoded(event: Event) -> bytes:
    data = one_line(json.dumps(event, ensure_ascii=False))
    return f"event: {event['type']}\ndata: {data}\n\n".encode()
