"""The HTTP application: routes, and the one place where exceptions become answers."""

import time

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from bootstrap.errors import RemoteFault
from cluster.api import (
    admin,
    chat,
    completions,
    dashboard,
    debug,
    models,
    operations,
    server_info,
    tokenize,
    version,
)
from cluster.api.access import Access, Keys
from cluster.api.bodies import Bodies
from cluster.api.errors import ApiError, api_error, invalid_body
from cluster.api.farewell import Farewell
from cluster.api.gate import Gate, tenant_of
from cluster.api.openapi import ERROR_RESPONSES, describe
from cluster.api.request_ids import RequestIds
from cluster.api.responses import route as responses
from cluster.api.resumption import ResumableStreams
from cluster.balancer.administration import Administration
from cluster.balancer.dispatcher import Dispatcher
from cluster.version import installed_version


def create_app(dispatcher: Dispatcher, keys: Keys) -> FastAPI:
    """The application over a running dispatcher, whose life is its owner's concern."""
    app = FastAPI(
        title="pdserve",
        version=installed_version(),
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        responses=ERROR_RESPONSES,
    )
    app.state.dispatcher = dispatcher
    app.state.administration = Administration(dispatcher)
    app.state.streams = ResumableStreams()
    app.state.watchers = set()
    app.state.started_at = int(time.time())
    for module in (
        chat,
        completions,
        responses,
        models,
        operations,
        tokenize,
        version,
        server_info,
        admin,
        debug,
        dashboard,
    ):
        app.include_router(module.router)
    describe(app)
    app.add_exception_handler(RemoteFault, _remote_fault)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(UnicodeEncodeError, _lone_surrogate)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _bug)
    _add_middleware(app, dispatcher, keys)
    return app


def _add_middleware(app: FastAPI, dispatcher: Dispatcher, keys: Keys) -> None:
    """The last one added is the first to see a request."""
    settings = dispatcher.settings
    admission = dispatcher.core.admission
    app.add_middleware(
        Bodies,
        max_bytes=settings.max_request_bytes,
        retry_after_s=lambda scope: admission.retry_after_s(tenant_of(scope)),
    )
    app.add_middleware(Gate, dispatcher=dispatcher)
    app.add_middleware(Access, keys=keys)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    app.add_middleware(RequestIds)
    app.add_middleware(Farewell, dispatcher=dispatcher)


def _answer(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)


async def _remote_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, RemoteFault)
    return _answer(api_error(error))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(invalid_body(error.errors()))


async def _lone_surrogate(request: Request, error: Exception) -> Response:
    """pydantic cannot even say what is wrong with a body whose keys or tags hold one."""
    return _answer(ApiError(400, "The request holds text with lone surrogates."))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    return _answer(ApiError(error.status_code, text, headers=error.headers))


async def _bug(request: Request, error: Exception) -> Response:
    return _answer(ApiError(500, "internal error", code="internal_error"))
