"""The document at `/openapi.json`: what FastAPI derives from the routes, set right where it is wrong."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_STATUSES = {
    400: "The request is wrong; `param` names the field.",
    401: "No valid API key.",
    403: "The key may not do this.",
    404: "No such model, route or request.",
    405: "The route exists for another method.",
    409: "The present state forbids it.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    429: "Too many requests.",
    500: "A bug.",
    503: "Nobody can serve this now; Retry-After says when to ask again.",
    504: "The request's deadline passed.",
}


class ErrorObject(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer with a status of 400 and above."""

    error: ErrorObject


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _STATUSES.items()
}
_STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


def describe(app: FastAPI) -> None:
    """Have `app.openapi` answer with the corrected document."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        document = derive()
        for path, methods in document["paths"].items():
            for operation in methods.values():
                _correct(path, operation["responses"])
        document["components"].setdefault("securitySchemes", {})["key"] = {
            "type": "http",
            "scheme": "bearer",
        }
        document["security"] = [{"key": []}, {}]  # keys are optional
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _correct(path: str, responses: dict[str, Any]) -> None:
    responses.pop("422", None)  # 400 here, with OpenAI's error object
    if path in _STREAMED:
        responses["200"].setdefault("content", {})["text/event-stream"] = {
            "schema": {"type": "string"}
        }
