"""Keys, limits, methods, types, origins and TLS, over real HTTP."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from bootstrap.errors import RemoteFault
from cluster import runtime
from cluster.endpoint import KEY_VARIABLE
from cluster.status import fetch
from tests.support import balancer_cluster
from tests.support.balancer_cluster import MODEL, chat, complete
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

ids = balancer_cluster.ids
make_cluster = balancer_cluster.make_cluster
tokenizer = balancer_cluster.tokenizer

OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=localhost"]
BODY = {"model": MODEL, "prompt": "Say it.", "max_tokens": 4}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# two tenants\nkey-one\nkey-two\n")
    return path


def ready(cluster):
    vars(cluster).update(vars(cluster.pair()))
    cluster.wait_ready()
    return cluster


def authorization(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_only_keys_of_the_file_are_served(make_cluster, key_file):
    cluster = ready(make_cluster(api_key_file=str(key_file)))
    with pytest.raises(openai.AuthenticationError) as caught:
        complete(cluster)
    assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.type == "invalid_request_error"
    for key in ("key-one", "key-two"):
        client = cluster.openai.with_options(api_key=key)
        assert client.completions.create(**BODY).usage.completion_tokens == 4
    for path in ("/health", "/ready", "/metrics"):
        assert cluster.http.get(path).status_code == 200
    for path in ("/v1/models", "/status", "/openapi.json", "/version", "/server_info", "/none"):
        answer = cluster.http.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"]
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_the_commands_show_the_key_of_the_environment(make_cluster, key_file, monkeypatch):
    cluster = make_cluster(api_key_file=str(key_file))
    with pytest.raises(RemoteFault, match="401"):
        fetch(cluster.url)
    monkeypatch.setenv(KEY_VARIABLE, "key-two")
    assert fetch(cluster.url)["model"] == MODEL


def test_a_refused_body_is_never_read(make_cluster, key_file):
    cluster = make_cluster(api_key_file=str(key_file))
    host, port = cluster.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer wrong\r\n\r\n"
        )
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_keys_rotate_while_requests_run(make_cluster, key_file):
    cluster = ready(make_cluster(api_key_file=str(key_file)))
    key_file.write_text("key-three\n")
    old, new = (
        cluster.http.get("/v1/models", headers=authorization(key)).status_code
        for key in ("key-one", "key-three")
    )
    assert (old, new) == (401, 200)


def test_no_key_appears_in_an_answer(make_cluster, key_file):
    cluster = make_cluster(api_key_file=str(key_file))
    answer = cluster.http.get("/v1/models", headers=authorization("sk-guess"))
    assert "sk-guess" not in answer.text + str(answer.headers)


def test_administrators_routes_do_not_exist_without_their_keys(make_cluster, key_file, tmp_path):
    plain = make_cluster()
    for path in ("/admin/pause", "/admin/none"):
        assert plain.http.post(path, headers=authorization("key-one")).status_code == 404
    admins = tmp_path / "admins"
    admins.write_text("admin-key\n")
    guarded = make_cluster(api_key_file=str(key_file), admin_key_file=str(admins))
    statuses = {
        key: guarded.http.post("/admin/resume", headers=authorization(key)).status_code
        for key in ("nobody", "key-one", "admin-key")
    }
    assert statuses == {"nobody": 401, "key-one": 403, "admin-key": 200}
    assert guarded.http.get("/v1/models", headers=authorization("admin-key")).status_code == 200


def test_a_body_over_the_limit_is_413(make_cluster):
    cluster = ready(make_cluster(max_request_bytes=2048))
    small = {**BODY, "prompt": "x" * 100}
    assert cluster.http.post("/v1/completions", json=small).status_code == 200
    large = json.dumps({**BODY, "prompt": "x" * 4000}).encode()
    typed = {"Content-Type": "application/json"}

    def hidden():  # sent in chunks, without a length
        for start in range(0, len(large), 1000):
            yield large[start : start + 1000]

    for content in (large, hidden()):
        answer = cluster.http.post("/v1/completions", content=content, headers=typed)
        assert answer.status_code == 413
        error = answer.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", None)
        assert "2048 bytes" in error["message"]
    exact = {**BODY, "prompt": ""}
    exact["prompt"] = "x" * (2048 - len(json.dumps(exact)))
    content = json.dumps(exact).encode()
    assert len(content) == 2048
    answer = cluster.http.post("/v1/completions", content=content, headers=typed)
    assert answer.status_code != 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "identity"}, 200),
    ],
)
def test_only_json_is_taken(make_cluster, headers, status):
    cluster = ready(make_cluster())
    content = json.dumps(BODY).encode()
    answer = cluster.http.post("/v1/completions", content=content, headers=headers)
    assert answer.status_code == status
    if status == 415:
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_wrong_method_is_405_with_the_right_one(make_cluster):
    cluster = make_cluster()
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/tokenize", "POST"),
        ("OPTIONS", "/v1/models", "GET"),
    ):
        answer = cluster.http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert cluster.http.get("/v1/none").json()["error"]["message"]


def test_origins_that_are_allowed_may_call(make_cluster, key_file):
    cluster = make_cluster(
        allowed_origins="https://app.example, http://localhost:3000", api_key_file=str(key_file)
    )
    preflight = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    answer = cluster.http.options("/v1/chat/completions", headers=preflight)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    other = {**preflight, "Origin": "https://evil.example"}
    refused = cluster.http.options("/v1/chat/completions", headers=other)
    assert "access-control-allow-origin" not in refused.headers
    # The page may read why it was refused, too.
    answer = cluster.http.get("/v1/models", headers={"Origin": "http://localhost:3000"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_without_origins_no_page_may_call(make_cluster):
    answer = make_cluster().http.get("/v1/models", headers={"Origin": "https://app.example"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


# --- the process: TLS and SIGHUP -------------------------------------------------------------


@pytest.fixture
def start(tmp_path):
    """Run `pdserve balancer` with flags; its base URL once it answers."""
    processes, clients = [], []

    def make(scheme: str, verify, *flags: str):
        port = runtime.free_port("127.0.0.1")
        command = [
            *(sys.executable, "-m", "cluster", "balancer", "--host", "127.0.0.1"),
            *("--port", str(port), "--bootstrap", "tcp://127.0.0.1:1", "--model-name", "tiny"),
            *("--model-dir", str(make_tiny_model(tmp_path / "model")), *flags),
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        client = httpx.Client(base_url=f"{scheme}://localhost:{port}", verify=verify, timeout=30)
        clients.append(client)

        def answers() -> bool:
            assert process.poll() is None, process.stderr.read()
            try:
                return client.get("/health").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(answers, 60, "health")
        return process, client

    yield make
    for client in clients:
        client.close()
    for process in processes:
        process.kill()
        process.communicate()


def test_tls_with_an_encrypted_key(start, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    password = tmp_path / "password"
    password.write_text("secret\n")
    subprocess.run(
        [
            *(*OPENSSL, "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key)),
            *("-out", str(certificate), "-passout", f"file:{password}"),
        ],
        check=True,
        capture_output=True,
    )
    process, client = start(
        "https",
        ssl.create_default_context(cafile=str(certificate)),
        *("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
        *("--ssl-key-password-file", str(password)),
    )
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "secret" not in errors


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ssl-certfile", "/none.pem"], "No such file"),
        (["--ssl-keyfile", "/none.pem"], "ssl_certfile=None"),
        (["--api-key-file", "/none"], "api_key_file='/none': No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_at_once(tmp_path, flags, said):
    command = [
        *(sys.executable, "-m", "cluster", "balancer", "--host", "127.0.0.1", "--port", "0"),
        *("--bootstrap", "tcp://127.0.0.1:1", "--model-name", "tiny"),
        *("--model-dir", str(make_tiny_model(tmp_path / "model")), *flags),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_hang_up_reads_the_keys_again(start, key_file):
    process, client = start("http", True, "--api-key-file", str(key_file), "--log-level", "info")
    before = key_file.stat()
    key_file.write_text(key_file.read_text().replace("key-one", "key-new"))
    os.utime(key_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    # Size, inode and times are equal: only being told helps.
    status = lambda: client.get("/v1/models", headers=authorization("key-new")).status_code  # noqa: E731
    assert status() == 401
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: status() == 200, what="the new key")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "2 keys read" in errors
    assert "key-" not in errors


def test_chat_needs_a_key_too(make_cluster, key_file):
    cluster = make_cluster(api_key_file=str(key_file))
    with pytest.raises(openai.AuthenticationError):
        chat(cluster)
