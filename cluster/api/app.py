"""The HTTP application: routes, and the one place where exceptions become answers."""

import time

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from bootstrap.errors import RemoteFault
from cluster.api import chat, completions, models, operations
from cluster.api.errors import ApiError, api_error, invalid_body
from cluster.api.request_ids import RequestIds
from cluster.balancer.dispatcher import Dispatcher


def create_app(dispatcher: Dispatcher) -> FastAPI:
    """The application over a running dispatcher, whose life is its owner's concern."""
    app = FastAPI(title="pdserve", openapi_url=None)
    app.state.dispatcher = dispatcher
    app.state.started_at = int(time.time())
    for module in (chat, completions, models, operations):
        app.include_router(module.router)
    app.add_exception_handler(RemoteFault, _remote_fault)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(RequestIds)
    return app


def _answer(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)


async def _remote_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, RemoteFault)
    return _answer(api_error(error))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(invalid_body(error.errors()))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(
        ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    )


async def _bug(request: Request, error: Exception) -> Response:
    return _answer(ApiError(500, "internal error", code="internal_error"))
