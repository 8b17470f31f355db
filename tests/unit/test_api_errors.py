"""Every fault has one status and one error object."""

import json

import pytest

from bootstrap.errors import WireError
from cluster.api.errors import ApiError, api_error, unknown_model
from cluster.balancer.asks import AskRefused
from cluster.balancer.generation import GenerationFailed
from cluster.balancer.instructions import Failure, FailureKind


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (FailureKind.DEADLINE, 504),
        (FailureKind.UNAVAILABLE, 503),
        (FailureKind.OVERLOADED, 429),
        (FailureKind.WORKERS_FAILED, 503),
        (FailureKind.NUMERICAL, 500),
        (FailureKind.INTERNAL, 500),
        (FailureKind.CANCELLED, 499),
    ],
)
def test_failures(kind, status):
    error = api_error(GenerationFailed(Failure(kind, "why")))
    assert error.status == status
    assert error.body["error"]["message"]
    assert ("Retry-After" in error.headers) == (status in (429, 503))


def test_what_happened_inside_a_worker_is_for_the_log():
    for kind in (FailureKind.WORKERS_FAILED, FailureKind.INTERNAL, FailureKind.DEADLINE):
        error = api_error(GenerationFailed(Failure(kind, "d1@ab: /usr/lib", "Traceback")))
        assert not {"d1@ab", "/usr", "Traceback"} & set(str(error).split())
    missing = Failure(FailureKind.UNAVAILABLE, "no ready decode worker", "d1@ab")
    assert str(api_error(GenerationFailed(missing))) == "no ready decode worker"


def test_refusals_name_the_field_that_holds_the_prompt_unless_they_know_better():
    error = api_error(AskRefused("long", None, "context_length_exceeded"), "messages")
    assert error.body["error"] == {
        "message": "long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    assert api_error(AskRefused("x", "min_tokens"), "messages").param == "min_tokens"


def test_what_is_not_known_is_ours_and_tells_no_secrets():
    error = api_error(WireError("internal detail"))
    assert error.status == 500
    assert "detail" not in json.dumps(error.body)


def test_the_last_event_of_a_broken_stream():
    error = ApiError(503, "gone", code="no_workers")
    assert error.event.startswith(b"data: {")
    assert error.event.endswith(b"\n\n")
    assert json.loads(error.event[6:])["error"]["type"] == "service_unavailable_error"


def test_unknown_model():
    error = unknown_model("x")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
