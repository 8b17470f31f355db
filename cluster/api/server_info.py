"""`GET /server_info`: what this server is and how it is set, for tools that compare runs.

Names no path and no secret.
"""

import time
from typing import Any

from fastapi import APIRouter, Request

from cluster.balancer.dispatcher import Dispatcher
from cluster.version import installed_version

router = APIRouter()

_SETTINGS = ("request_timeout_s", "max_attempts", "pair_wait_s", "max_request_bytes", "log_level")


@router.get("/server_info")
async def server_info(request: Request) -> dict[str, Any]:
    """Version, model, limits, contracts, and settings that change answers."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    settings, tokenizer = dispatcher.settings, dispatcher.text.tokenizer
    pools = dispatcher.core.members.pools
    return {
        "version": installed_version(),
        "model": settings.model_name,
        "uptime_s": round(time.time() - request.app.state.started_at, 3),
        "max_model_len": max((pool.max_output(0) for pool in pools), default=None),
        "vocab_size": tokenizer.vocab_size,
        "has_chat_template": tokenizer.has_chat_template,
        "tokenizer_digest": tokenizer.digest,
        "paused": dispatcher.paused,
        "settings": {name: getattr(settings, name) for name in _SETTINGS},
        "pools": [
            {
                "num_prefill": len(pool.prefills),
                "num_decode": len(pool.decodes),
                "model_digest": pool.contract.model_digest,
                "dtype": pool.contract.dtype,
                "block_size": pool.contract.block_size,
                "transfer": pool.prefills[0].transfer.backend,
            }
            for pool in pools
        ],
    }
