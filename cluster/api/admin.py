"""`POST /admin/...`: an administrator's routes. Who may call them is `cluster.api.access`'s to know."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from bootstrap.commands import LogLevel
from cluster.api.errors import ApiError
from cluster.api.sse import unless_gone
from cluster.balancer.administration import Administration, PauseMode
from cluster.balancer.commands import EngineAnswer
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.request import Request as BalancerRequest
from cluster.balancer.weight_update import WeightUpdateFailed

router = APIRouter(prefix="/admin")

MAX_LISTED = 1000


class PauseRequest(BaseModel):
    """Body of `/admin/pause`."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["wait", "abort"] = "wait"


class UpdateWeightsRequest(PauseRequest):
    """Body of `/admin/update_weights`; `path` is a folder on every engine's host."""

    path: Annotated[str, Field(min_length=1, max_length=1024)]


class AbortRequest(BaseModel):
    """Body of `/admin/abort`."""

    model_config = ConfigDict(extra="forbid")

    request_id: Annotated[str, Field(min_length=1, max_length=128)]


class LogLevelRequest(BaseModel):
    """Body of `/admin/log_level`."""

    model_config = ConfigDict(extra="forbid")

    level: LogLevel


@router.post("/pause")
async def pause(request: Request, body: PauseRequest | None = None) -> dict[str, str]:
    """Refuse new requests (503); answers when those that run have ended."""
    mode = PauseMode((body or PauseRequest()).mode)
    await unless_gone(request, _admin(request).pause(mode))
    return {"status": "paused"}


@router.post("/resume")
async def resume(request: Request) -> dict[str, str]:
    """Take requests again."""
    _admin(request).resume()
    return {"status": "serving"}


@router.get("/requests")
async def requests(request: Request) -> dict[str, Any]:
    """The requests that have no outcome yet, oldest first; the server's own are left out."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    live = [r for r in dispatcher.core.requests() if r.spec.answer_id]
    return {"num_requests": len(live), "requests": [_facts(r) for r in live[:MAX_LISTED]]}


@router.post("/abort")
async def abort(body: AbortRequest, request: Request) -> dict[str, Any]:
    """End a call by its answer's id, which its chunks and `/admin/requests` tell.

    One that has not come yet is ended when it comes.
    """
    num_aborted = _admin(request).abort(body.request_id)
    return {
        "request_id": body.request_id,
        "num_aborted": num_aborted,
        "remembered": num_aborted == 0,
    }


@router.post("/flush_cache")
async def flush_cache(request: Request) -> Response:
    """Forget all cached blocks; 409 while an engine has live pages."""
    return _engines_answer(await _admin(request).flush_cache())


@router.post("/update_weights")
async def update_weights(body: UpdateWeightsRequest, request: Request) -> dict[str, str]:
    """Pause, have every engine load weights from its disk, resume; all engines or none."""
    try:
        digest = await _admin(request).update_weights(body.path, PauseMode(body.mode))
    except WeightUpdateFailed as error:
        status, code = (500, "partial_update") if error.partial else (409, "refused_by_engine")
        raise ApiError(status, str(error), code=code) from error
    return {"status": "updated", "model_digest": digest}


@router.post("/log_level")
async def log_level(body: LogLevelRequest, request: Request) -> Response:
    """Of the balancer and of all engines."""
    return _engines_answer(await _admin(request).set_log_level(body.level))


def _facts(request: BalancerRequest) -> dict[str, Any]:
    spec = request.spec
    return {
        "id": spec.answer_id,
        "request_id": spec.request_id,
        "state": request.state.value,
        "num_attempts": request.num_attempts,
        "prompt_tokens": len(spec.prompt_token_ids),
        "completion_tokens": len(request.delivered),
        "max_tokens": spec.sampling.max_tokens,
    }


def _admin(request: Request) -> Administration:
    administration: Administration = request.app.state.administration
    return administration


def _engines_answer(answers: list[EngineAnswer]) -> Response:
    refused = [f"{answer.worker}: {answer.refusal}" for answer in answers if answer.refusal]
    if refused:
        raise ApiError(409, "; ".join(refused), code="refused_by_engine")
    engines = {answer.worker: {"num_blocks": answer.num_blocks} for answer in answers}
    return JSONResponse({"status": "done", "engines": engines})
