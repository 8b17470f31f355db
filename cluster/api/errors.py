"""The one place where what went wrong becomes a status and OpenAI's error object.

ApiError        what a client is told
├── from AskRefused          400, the field and code named there
├── from GenerationFailed    429 and 503 with Retry-After, 504, 500
└── from a body that does not validate  400
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bootstrap.errors import RemoteFault
from cluster.api.wording import place, said
from cluster.balancer.asks import AskRefused
from cluster.balancer.generation import GenerationFailed
from cluster.balancer.instructions import FailureKind

RETRY_AFTER_S = 1

_STATUS = {
    FailureKind.CANCELLED: (499, "cancelled"),  # nobody reads it
    FailureKind.DEADLINE: (504, "deadline_exceeded"),
    FailureKind.UNAVAILABLE: (503, "no_workers"),
    FailureKind.OVERLOADED: (429, "rate_limit_exceeded"),
    FailureKind.PAUSED: (503, "paused"),
    FailureKind.WORKERS_FAILED: (503, "workers_failed"),
    FailureKind.NUMERICAL: (500, "numerical_error"),
    FailureKind.INTERNAL: (500, "internal_error"),
}
# Where the detail is for the log: it names workers, or quotes what went wrong inside one.
_TOLD = {
    FailureKind.DEADLINE: "The request took longer than the server allows.",
    FailureKind.WORKERS_FAILED: "The server could not complete the request. Please try again.",
    FailureKind.NUMERICAL: "The model's output for this request is not a number.",
    FailureKind.INTERNAL: "The server had an error while processing the request.",
}
_TYPES = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_SHAPES = {  # pydantic names only the first of several allowed types
    "prompt": "a non-empty string, array of strings, array of token ids, or array of such arrays",
    "stop": "a string of 1 to 1024 characters, or an array of up to 16 of them",
}


class ApiError(RemoteFault):
    """A status, and OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_encodable(message))
        self._headers = dict(headers or {})
        self.status = status
        self.param = None if param is None else _encodable(param)
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON answer."""
        return {
            "error": {
                "message": str(self),
                "type": _TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        retry = {"Retry-After": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}
        return {**retry, **self._headers}

    @property
    def event(self) -> bytes:
        """The last event of a stream that breaks off."""
        return b"data: " + json.dumps(self.body).encode() + b"\n\n"


def _encodable(text: str) -> str:
    """JSON can hold lone surrogates, an answer in UTF-8 cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def unknown_model(name: str) -> ApiError:
    """The client asks for a model that is not served."""
    return ApiError(
        404, f"The model '{name}' does not exist.", param="model", code="model_not_found"
    )


def api_error(error: RemoteFault, prompt_param: str | None = None) -> ApiError:
    """What a client is told of `error`; `prompt_param` is the field that holds its prompt."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AskRefused):
        return ApiError(400, str(error), param=error.param or prompt_param, code=error.code)
    if isinstance(error, GenerationFailed):
        failure = error.failure
        status, code = _STATUS[failure.kind]
        headers = {}
        if failure.retry_after_s is not None:
            headers["Retry-After"] = str(failure.retry_after_s)
        text = _TOLD.get(failure.kind, failure.detail)
        return ApiError(status, text, code=code, headers=headers)
    return ApiError(500, _TOLD[FailureKind.INTERNAL], code="internal_error")


def invalid_body(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """A body that is no JSON, or does not fit the schema; `problems` are pydantic's."""
    problem = problems[0]
    kind, context = problem["type"], problem.get("ctx", {})
    path = place(problem)
    if kind == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {context.get('error', '')}")
    if not path and kind == "model_attributes_type":
        return ApiError(400, "The body must be a JSON object, sent as application/json.")
    named = kind in ("unsupported", "conflict")
    param = str(context["field"]) if named else ".".join(path[:1]) or None
    if kind == "extra_forbidden":
        return ApiError(400, f"Unrecognized request argument supplied: {path[0]}", param=param)
    if kind == "missing":
        return ApiError(400, f"Missing required parameter: '{'.'.join(path)}'.", param=param)
    if named:
        code = "unsupported_parameter" if kind == "unsupported" else None
        return ApiError(400, f"{said(problem)}.", param=param, code=code)
    if path and path[0] in _SHAPES and len(path) < 3:
        return ApiError(400, f"Invalid value for '{path[0]}': {_SHAPES[path[0]]}.", param=path[0])
    where = f"Invalid value for '{'.'.join(path)}': " if path else ""
    return ApiError(400, f"{where}{said(problem)}.", param=param)
