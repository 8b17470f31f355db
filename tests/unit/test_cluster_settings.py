"""Settings of `up`: where values come from, and what is said of wrong ones."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bootstrap.errors import ConfigError
from cluster import launch, logs
from cluster.cli import run
from cluster.runtime import ROOT_VARIABLE, free_port
from cluster.settings import BalancerIdentity, ClusterSettings, EngineIdentity, load
from cluster.signals import Stopped


def config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return str(path)


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    settings = load({"decode": 3}, config(tmp_path, "decode: 2\nprefill: 2\n"))
    assert (settings.decode, settings.prefill, settings.block_size) == (3, 2, 16)


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert load({}, config(tmp_path, "salvage_lease_s: 3\n")).salvage_lease_s == 3.0


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load({}, config(tmp_path, "# nothing\n")) == ClusterSettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefil: 2", r"unknown key 'prefil'=2: allowed are model, .*prefill"),
        ("prefill: two", r"prefill='two': a whole number"),
        ("prefill: true", r"prefill=True: a whole number"),
        ("model: 3", r"model=3: text"),
        ("salvage_lease_s: long", r"salvage_lease_s='long': a number"),
        ("otlp_traces_endpoint: collector:4317", r"'collector:4317': http://HOST:PORT is needed"),
        ("max_model_len: long", r"max_model_len='long': a whole number"),
        ("max_model_len: 1", r"max_model_len=1: allowed are 2 to"),
        ("prefix_caching: 1", r"prefix_caching=1: true or false"),
        ("dtype: float8", r"dtype='float8': allowed are float64, float32, bfloat16"),
        ("transfer: smoke", r"transfer='smoke': allowed are nixl, mooncake, fake"),
        ("port: 70000", r"port=70000: allowed are 1 to 65535"),
        ("decode: 0", r"decode=0: allowed are 1 to"),
        ("endpoint: 0", r"endpoint=0: true or false"),
        ("bootstrap_port: 80", r"bootstrap_port=80: allowed are 0 and 1024 to 65535"),
        ("block_size: 0", r"block_size=0: allowed are 1 to"),
        ("log_format: xml", r"log_format='xml': allowed are text, json"),
        ("log_level: loud", r"log_level='loud': allowed are debug, info"),
        ("max_request_bytes: 1", r"max_request_bytes=1: allowed are 1024 to"),
        ("allowed_origins: a.example", r"allowed_origins='a.example': allowed are \* and http"),
        ("ssl_keyfile: key.pem", r"ssl_certfile=None: a key needs its certificate"),
        ("model: ''", r"model='': a value"),
        ("ray_address: auto", r"secret_file=None: with ray_address='auto'"),
        ("- a list", r"a mapping of keys"),
        ("model: [", r"not YAML"),
    ],
)
def test_a_wrong_key_type_or_value_is_named_with_what_is_allowed(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load({}, config(tmp_path, text))


IDENTITY = EngineIdentity(
    worker_id="prefill-0",
    model_dir="/m",
    model_name="m",
    bootstrap="tcp://127.0.0.1:20000",
    bind_host="127.0.0.1",
    secret_file="/s",
)


def test_an_engine_gets_the_clusters_keys_and_its_own_identity() -> None:
    settings = ClusterSettings(num_blocks=77, num_threads=3, prefix_caching=False)
    engine = settings.engine(IDENTITY)
    assert (engine.num_blocks, engine.num_threads, engine.prefix_caching) == (77, 3, False)
    assert (engine.worker_id, engine.secret_file) == ("prefill-0", "/s")


def test_the_balancer_gets_the_endpoints_keys_and_its_own_identity() -> None:
    settings = ClusterSettings(port=9000, api_key_file="/k", allowed_origins="*", max_attempts=5)
    balancer = settings.balancer(
        BalancerIdentity(
            model_dir="/m",
            model_name="m",
            bootstrap="tcp://127.0.0.1:20000",
            bind_host="127.0.0.1",
            secret_file="/s",
            admin_key_file="/a",
            shutdown_grace_s=3.0,
        )
    )
    assert (balancer.port, balancer.api_key_file, balancer.max_attempts) == (9000, "/k", 5)
    assert (balancer.origins, balancer.secret_file) == (("*",), "/s")
    assert balancer.admin_key_file == "/a"


@pytest.mark.parametrize(
    ("given", "longest", "settled"), [(None, 512, 512), (None, 8192, 2048), (4096, 512, 4096)]
)
def test_a_length_that_nobody_chose_fits_the_model(
    given: int | None, longest: int, settled: int
) -> None:
    settings = ClusterSettings(max_model_len=given).for_model(longest)
    assert (
        settings.engine(IDENTITY).max_model_len == settled
    )  # a wrong one is the engine's to refuse


@pytest.mark.parametrize("content", [None, b"fifteen bytes.."])
def test_a_secret_that_cannot_work_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "run"))
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    assert run(["up", "--secret-file", str(secret)]) == 2
    assert "secret" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_secrets_path_is_the_same_for_processes_in_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").write_bytes(b"s" * 16)
    (tmp_path / "mounted").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    seen: list[str | None] = []

    def stop(settings: ClusterSettings) -> None:
        seen.append(settings.secret_file)
        raise Stopped

    monkeypatch.setattr(launch, "_serve", lambda settings, *_: stop(settings))
    monkeypatch.setattr(launch, "adopt_orphans", lambda: None)
    monkeypatch.setattr(launch, "end_descendants", lambda _: [])
    monkeypatch.setattr(launch, "StopSignals", lambda: None)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "run"))
    port = str(free_port("127.0.0.1"))
    assert run(["up", "--secret-file", "mounted", "--port", port]) == 0
    assert seen == [str(tmp_path / "mounted")]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[ClusterSettings]:
    """Settings with which the command line would have started a cluster."""
    seen: list[ClusterSettings] = []

    def up(arguments: dict[str, Any]) -> int:
        seen.append(load(arguments, arguments.pop("config")))
        return 0

    monkeypatch.setattr("cluster.cli._up", up)
    return seen


def test_every_key_is_a_flag(launched: list[ClusterSettings]) -> None:
    values = {
        "dtype": "bfloat16",
        "transfer": "fake",
        "log_level": "debug",
        "log_format": "json",
        "device": "cpu",
        "prefix_caching": False,
        "verify_handoff": False,
        "salvage_lease_s": 2.5,
        "endpoint": False,
        "otlp_traces_endpoint": "http://collector:4318",
        "bootstrap_port": 7100,
        "max_request_bytes": 7000,
        "tool_call_parser": "hermes",
        "reasoning_parser": "none",
        "allowed_origins": "https://a.example, http://b.example:8080",
    }
    flags = []
    for entry in fields(ClusterSettings):
        value = values.get(entry.name, 7 if entry.metadata["kind"] is int else "text")
        values[entry.name] = value
        flag = entry.name.replace("_", "-")
        flags += [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
    assert run(["up", *flags]) == 0
    assert launched == [ClusterSettings(**values)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["up", "--port", "x"], "port='x': a whole number is needed"),
        (["up", "--dtype", "f8"], "dtype='f8': allowed are float64, float32, bfloat16"),
        (["up", "--decoders", "2"], "--decoders"),
        (["up", "--config", "/does/not/exist"], "config='/does/not/exist': No such file"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "COMMAND"),
        (["status", "--url", "localhost:8000"], "url='localhost:8000': http://HOST:PORT is needed"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["up", "status", "down", "chat", "balancer"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run([command, "--help"])
    assert ended.value.code == 0
    assert f"pdserve {command}" in capsys.readouterr().out
