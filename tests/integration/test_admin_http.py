"""An administrator's routes over real HTTP: pause, resume, abort, log level, and /tokenize's kin."""

import logging
import threading

import openai
import pytest

from bootstrap.commands import CommandAnswered, FlushCache, SetLogLevel
from bootstrap.messages import FailureReason
from cluster.api.request_ids import CallName
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, TEXT, complete, started_stream
from tests.support.tiny_model import EOS_TOKEN_ID
from tests.support.waiting import wait_for
from tests.support.waiting_client import wait_for_requests, waiting_client

ids = balancer_cluster.ids
tokenizer = balancer_cluster.tokenizer
make_cluster = balancer_cluster.make_cluster

KEY = {"Authorization": "Bearer admin-key"}


@pytest.fixture
def cluster(make_cluster, tmp_path):
    """One pair that is ready, and an administrator's key."""
    path = tmp_path / "admins"
    path.write_text("admin-key\n")
    made = make_cluster(admin_key_file=str(path))
    vars(made).update(vars(made.pair()))
    made.wait_ready()
    return made


def admin(cluster, path: str, **body):
    return cluster.http.post(f"/admin/{path}", headers=KEY, json=body)


def in_thread(work):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


def test_a_pause_refuses_new_requests_and_lets_the_running_finish(cluster):
    cluster.d.limit = 6
    stream, text = started_stream(cluster, "running")
    thread, answers = in_thread(lambda: admin(cluster, "pause", mode="wait"))
    wait_for(lambda: cluster.http.get("/server_info").json()["paused"], what="paused")
    with pytest.raises(openai.InternalServerError) as caught:
        complete(cluster)
    assert (caught.value.status_code, caught.value.code) == (503, "paused")
    assert caught.value.response.headers["retry-after"]
    assert "paused" in cluster.http.get("/ready").json()["reason"]
    assert not answers
    cluster.d.release()
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text + rest == TEXT
    thread.join(20)
    assert (answers[0].status_code, answers[0].json()) == (200, {"status": "paused"})
    assert admin(cluster, "resume").json() == {"status": "serving"}
    assert complete(cluster).choices[0].text == TEXT
    cluster.wait_ready()


def test_a_pause_that_aborts_ends_streams_with_an_error(cluster):
    cluster.d.limit = 6
    stream, _ = started_stream(cluster, "running")
    assert admin(cluster, "pause", mode="abort").status_code == 200
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    stream.close()
    assert "paused" in str(caught.value)
    room = cluster.d.dispatches[-1].room
    wait_for(lambda: room in cluster.d.aborts)
    admin(cluster, "resume")


def test_who_stops_waiting_leaves_the_server_paused(cluster):
    cluster.d.limit = 6
    stream, _ = started_stream(cluster, "running")
    paused = lambda: cluster.http.get("/server_info").json()["paused"]  # noqa: E731
    with waiting_client(cluster, "/admin/pause", {"mode": "wait"}, KEY):
        wait_for(paused, what="paused")
    wait_for_requests(cluster, 1)  # the stream's
    assert paused()
    stream.close()
    admin(cluster, "resume")


def test_a_wrong_mode_is_400(cluster):
    answer = admin(cluster, "pause", mode="perhaps")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mode")
    assert not cluster.http.get("/server_info").json()["paused"]


def live(cluster) -> list[dict]:
    """The requests that run."""
    return cluster.http.get("/admin/requests", headers=KEY).json()["requests"]


def test_an_abort_ends_exactly_the_request_it_names(cluster):
    cluster.d.limit = 6
    first, _ = started_stream(cluster, "same")
    second, text = started_stream(cluster, "same")
    name = live(cluster)[0]["id"]
    assert [r["request_id"] for r in live(cluster)] == ["same", "same"]
    assert admin(cluster, "abort", request_id="same").json()["num_aborted"] == 0
    answer = admin(cluster, "abort", request_id=name).json()
    assert answer == {"request_id": name, "num_aborted": 1, "remembered": False}
    with pytest.raises(openai.APIError) as caught:
        list(first)
    first.close()
    assert "aborted by an administrator" in str(caught.value)
    cluster.d.release()
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in second if chunk.choices)
    assert text + rest == TEXT


def test_an_abort_ends_all_choices_of_a_call(cluster):
    cluster.d.limit = 6
    work = lambda: cluster.http.post(  # noqa: E731
        "/v1/completions", json={"model": MODEL, "prompt": ["a", "b"], "max_tokens": 50}
    )
    thread, answers = in_thread(work)
    wait_for(lambda: len(cluster.d._held) == 2, what="both held")
    names = {r["id"] for r in live(cluster)}
    assert len(names) == 1
    name = names.pop()
    assert admin(cluster, "abort", request_id=name).json()["num_aborted"] == 2
    thread.join(20)
    assert answers[0].status_code == 499
    for dispatch in cluster.d.dispatches[-2:]:
        wait_for(lambda d=dispatch: cluster.d.aborts.get(d.room) is FailureReason.CANCELLED)


def test_an_unknown_id_is_remembered(cluster):
    answer = admin(cluster, "abort", request_id="to-come").json()
    assert answer == {"request_id": "to-come", "num_aborted": 0, "remembered": True}


def test_an_abort_may_overtake_its_request(cluster, monkeypatch):
    name = CallName("cmpl-known", "any")
    monkeypatch.setattr(CallName, "new", lambda request, prefix: name)
    admin(cluster, "abort", request_id="cmpl-known")
    with pytest.raises(openai.APIStatusError) as caught:
        complete(cluster)
    assert (caught.value.status_code, caught.value.code) == (499, "cancelled")
    assert cluster.d.of("any") == []
    assert complete(cluster).choices[0].text == TEXT  # it was remembered for one request


def test_the_answers_id_is_what_is_listed(cluster):
    cluster.d.limit = 6
    stream = cluster.openai.completions.create(
        model=MODEL, prompt="Say it.", max_tokens=200, stream=True
    )
    with stream:
        first = next(iter(stream))
        (listed,) = live(cluster)
        assert (listed["id"], listed["max_tokens"]) == (first.id, 200)
        cluster.d.release()
        for _ in stream:
            pass
    assert live(cluster) == []


def answer_commands(worker, refusal: str = "", num_blocks: int = 0) -> list:
    """Have a scripted worker answer commands; those it got."""
    got = []
    before = worker._on_message

    def on_message(sender, message):
        if isinstance(message, FlushCache | SetLogLevel):
            got.append(message)
            answer = CommandAnswered(message.command, refusal, num_blocks)
            worker.mailbox.post(sender, answer)
        else:
            before(sender, message)

    worker.mailbox._on_message = on_message
    return got


def test_a_flush_reaches_every_engine(cluster):
    for worker in (cluster.p, cluster.d):
        answer_commands(worker, num_blocks=3)
    answer = admin(cluster, "flush_cache")
    assert answer.json()["engines"] == {"p1": {"num_blocks": 3}, "d1": {"num_blocks": 3}}


def test_one_engine_that_refuses_is_409_and_named(cluster):
    answer_commands(cluster.p)
    answer_commands(cluster.d, refusal="2 rooms are live")
    answer = admin(cluster, "flush_cache")
    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == "d1: 2 rooms are live"


def test_an_engine_that_says_nothing_is_named(cluster, monkeypatch):
    monkeypatch.setattr("cluster.balancer.administration.COMMAND_TIMEOUT_S", 2.0)
    answer_commands(cluster.p)
    answer = admin(cluster, "flush_cache")
    assert answer.json()["error"]["message"] == "d1: no answer"


def test_the_log_level_is_set_here_and_there(cluster):
    got = answer_commands(cluster.p), answer_commands(cluster.d)
    before = logging.getLogger().level
    try:
        assert admin(cluster, "log_level", level="debug").status_code == 200
        assert logging.getLogger().level == logging.DEBUG
        assert [[m.level for m in messages] for messages in got] == [["debug"], ["debug"]]
        assert admin(cluster, "log_level", level="loud").status_code == 400
    finally:
        logging.getLogger().setLevel(before)


# --- routes without a key --------------------------------------------------------------------


def test_tokenize_and_back(cluster, tokenizer):
    post = cluster.http.post
    answer = post("/tokenize", json={"model": MODEL, "prompt": TEXT}).json()
    assert answer["tokens"] == tokenizer.encode(TEXT)
    assert answer["count"] == len(answer["tokens"])
    assert (
        answer["max_model_len"] == cluster.http.get("/v1/models").json()["data"][0]["max_model_len"]
    )
    assert answer["token_strs"] is None
    back = post("/detokenize", json={"tokens": [*answer["tokens"], EOS_TOKEN_ID]}).json()
    assert back == {"prompt": TEXT + "<|im_end|>"}
    named = post("/tokenize", json={"prompt": "<|im_end|>", "return_token_strs": True}).json()
    assert (named["tokens"], named["token_strs"]) == ([EOS_TOKEN_ID], ["<|im_end|>"])


def test_tokenize_a_conversation(cluster, tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    for generation in (True, False):
        body = {"messages": messages, "add_generation_prompt": generation}
        answer = cluster.http.post("/tokenize", json=body).json()
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=generation)
        assert answer["tokens"] == expected


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, None),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, None),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": 3}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "odd": 1}, 400, "odd"),
        ("/detokenize", {}, 400, None),
        ("/detokenize", {"tokens": [1 << 20]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
def test_tokenize_says_what_is_wrong(cluster, path, body, status, param):
    answer = cluster.http.post(path, json=body)
    assert answer.status_code == status
    if param is not None:
        assert answer.json()["error"]["param"] == param


def test_version_info_and_models_by_name(cluster):
    version = cluster.http.get("/version").json()["version"]
    info = cluster.http.get("/server_info").json()
    assert (info["version"], info["model"], info["paused"]) == (version, MODEL, False)
    assert info["pools"][0]["num_prefill"] == 1
    assert "/" not in str(info["settings"])
    assert cluster.openai.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        cluster.openai.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_the_openapi_document_names_every_route(cluster):
    document = cluster.http.get("/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/admin/pause", "/health"):
        assert path in document["paths"]
    operation = document["paths"]["/v1/completions"]["post"]
    assert "422" not in operation["responses"]
    assert {"200", "400", "401", "503"} <= operation["responses"].keys()
    assert "text/event-stream" in operation["responses"]["200"]["content"]
