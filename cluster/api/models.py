"""`GET /v1/models`: the one model that is served."""

from fastapi import APIRouter, Request

from cluster.api.answer_schema import ModelCard, ModelList
from cluster.api.errors import unknown_model
from cluster.balancer.dispatcher import Dispatcher

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """All models."""
    return ModelList(data=[_card(request)])


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> ModelCard:
    """One model by name."""
    card = _card(request)
    if name != card.id:
        raise unknown_model(name)
    return card


def _card(request: Request) -> ModelCard:
    dispatcher: Dispatcher = request.app.state.dispatcher
    limits = [pool.max_output(0) for pool in dispatcher.core.members.pools]
    return ModelCard(
        id=dispatcher.settings.model_name,
        created=request.app.state.started_at,
        max_model_len=max(limits, default=None),
    )
