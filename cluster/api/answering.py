"""How both completion routes answer a call: whole, as a stream, or as the rest of an earlier stream."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from fastapi import Request, Response
from pydantic import BaseModel

from bootstrap.errors import RemoteFault
from cluster.api.errors import api_error
from cluster.api.schema import SamplingRequest
from cluster.api.sse import Events, resumed, streaming, unless_gone
from cluster.balancer.generation import Generation


class Answer(Protocol):
    """One call's answer, to be read once: whole, or as the events of a stream."""

    @property
    def id(self) -> str: ...
    @property
    def generation(self) -> Generation: ...
    def events(self) -> AsyncIterator[bytes]: ...
    async def whole(self) -> BaseModel: ...


async def answered(
    body: SamplingRequest, request: Request, begin: Callable[[], Awaitable[Answer]], param: str
) -> Response:
    """What `begin` answers; raises ApiError, which blames `param` where no other field is to blame."""

    async def whole() -> BaseModel:
        return await (await begin()).whole()

    async def events() -> Events:
        answer = await begin()
        return await Events.begin(answer.id, answer.events(), answer.generation.cancel)

    try:
        if body.stream:
            again = resumed(request)
            if again is not None:
                return again
            begun = await unless_gone(request, events())
            return streaming(request, begun, resumable=body.streaming.resumable)
        answer = await unless_gone(request, whole())
        return Response(answer.model_dump_json(), media_type="application/json")
    except RemoteFault as error:
        raise api_error(error, param) from error
