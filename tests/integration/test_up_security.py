"""`pdserve up` with keys and a certificate: ready over HTTPS, and what cannot be used is said first."""

import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster import runtime
from tests.support.tiny_model import make_tiny_model
from tests.support.up_process import END_TIMEOUT_S, UpProcess
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # pytest's own folders have names too long for Ray's sockets.
    path = Path(tempfile.mkdtemp(prefix="pds-", dir="/tmp"))
    monkeypatch.setenv(runtime.ROOT_VARIABLE, str(path / "run"))
    yield path
    shutil.rmtree(path)


def flags(folder: Path, **more: Path) -> list[str]:
    model = make_tiny_model(folder / "tiny")
    options = [f"--{name.replace('_', '-')}={path}" for name, path in more.items()]
    return ["--model", str(model), "--num-blocks", "128", "--max-model-len", "512", *options]


def test_keys_and_tls(folder: Path) -> None:
    certificate, key, keys = folder / "cert.pem", folder / "key.pem", folder / "keys"
    keys.write_text("key-one\n")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    port = runtime.free_port("127.0.0.1")
    options = flags(
        folder, api_key_file=keys, admin_key_file=keys, ssl_certfile=certificate, ssl_keyfile=key
    )
    with UpProcess(folder, port, options) as up:
        up.wait_ready()
        url = f"https://127.0.0.1:{port}"
        assert f"{url}/v1" in up.log
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=url, verify=context, timeout=30) as client:
            assert client.get("/v1/models").status_code == 401
            client.headers["Authorization"] = "Bearer key-one"
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
            assert client.post("/v1/completions", json=body).status_code == 200
            assert client.post("/admin/resume").status_code == 200


def test_a_file_that_cannot_be_used_is_said_before_anything_starts(folder: Path) -> None:
    port = runtime.free_port("127.0.0.1")
    with UpProcess(folder, port, flags(folder, api_key_file=folder / "none")) as up:
        assert up.process.wait(END_TIMEOUT_S) == 2
        assert up.log.startswith("pdserve: api_key_file=")
        assert up.log.count("\n") == 1


def test_beyond_loopback_its_own_user_looks_inside_and_nobody_else(folder: Path) -> None:
    port = runtime.free_port("127.0.0.1")
    with UpProcess(folder, port, [*flags(folder), "--host", "0.0.0.0"]) as up:
        up.wait_ready()
        (key,) = up.runtime_dir.glob("*/admin-key")
        assert f"asks for the key in {key}\n" in up.log
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.read_text() not in up.log
        assert httpx.get(f"{up.url}/debug/ledger", timeout=30).status_code == 401

        def looks_sound() -> bool:
            doctor = up.command("doctor")
            return doctor.returncode == 0 and doctor.stdout.endswith("\nnothing is wrong\n")

        wait_for(looks_sound, 60, "a look inside that finds nothing wrong")  # engines may be slow
        assert "decode-0" in up.command("top", "--once").stdout
    assert not key.exists()
