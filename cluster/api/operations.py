"""What operators ask: `/health`, `/ready`, `/status`, `/metrics`."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from bootstrap.membership import BalancerMember, Member
from cluster.api.errors import RETRY_AFTER_S
from cluster.balancer.dispatcher import Dispatcher

MAX_PAIRS = 256

router = APIRouter()


@router.get("/health")
async def health() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 only when a request that passed over a pair of workers succeeded recently."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    reason = dispatcher.unready_reason()
    if reason is None:
        return JSONResponse({"status": "ready"})
    body = {
        "status": "not ready",
        "reason": reason.message,
        "missing_roles": list(reason.missing_roles),
        "refusals": [asdict(refusal) for refusal in reason.refusals],
    }
    return JSONResponse(body, 503, {"Retry-After": str(RETRY_AFTER_S)})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text format."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    return Response(dispatcher.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """Who is there, who pairs with whom, and why not."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    members = dispatcher.core.members
    reason = dispatcher.unready_reason()
    pairs = members.pairs()
    return {
        "ready": reason is None,
        "reason": None if reason is None else reason.message,
        "model": dispatcher.settings.model_name,
        "members": [_member(member, dispatcher) for member in members],
        "balancers": [_balancer(balancer, dispatcher) for balancer in dispatcher.balancers()],
        "num_pairs": len(pairs),
        "pairs": [
            {"prefill": str(prefill), "decode": str(decode)}
            for prefill, decode in (pair.refs for pair in pairs[:MAX_PAIRS])
        ],
        "refusals": [asdict(refusal) for refusal in members.refusals],
        "requests": {
            "running": dispatcher.core.num_requests,
            "waiting": dispatcher.core.num_waiting,
        },
    }


def _balancer(member: BalancerMember, dispatcher: Dispatcher) -> dict[str, Any]:
    info, load = member.info, member.load
    return {
        "worker": info.peer.ref.worker_id,
        "incarnation": info.peer.ref.incarnation,
        "state": load.state.value,
        "model": info.model,
        "num_queued": load.num_queued,
        "num_running": load.num_running,
        "url": info.url,
        "endpoint": info.peer.endpoint,
        "host": info.host,
        "pid": info.pid,
        "me": info.peer == dispatcher.core.me,
    }


def _member(member: Member, dispatcher: Dispatcher) -> dict[str, Any]:
    info, load = member.info, member.load
    ref = info.peer.ref
    return {
        "role": info.role.value,
        "worker": ref.worker_id,
        "incarnation": ref.incarnation,
        "state": load.state.value,
        "model": info.model,
        "num_queued": load.num_queued,
        "num_running": load.num_running,
        "num_rooms": load.num_rooms,
        "pages": load.pages,
        "counters": load.counters,
        "transfer": {"backend": info.transfer.backend, "transport": info.transfer.transport},
        "endpoint": info.peer.endpoint,
        "host": info.host,
        "pid": info.pid,
        "outstanding_tokens": dispatcher.core.occupancy.outstanding[ref],
    }
