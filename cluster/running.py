"""The parts of a running cluster as `up` holds them: Ray, the supervisor actor, the balancer child.

Owns which workers are desired and their addresses, and keeps the two parts that nobody else
supervises alive. Knows nothing of terminals.
"""

import http.client
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bootstrap.errors import ConfigError
from bootstrap.identity import Role
from cluster import ray_session, runtime
from cluster.actors import NODE_ADDRESS, WorkerSpec
from cluster.addresses import is_loopback
from cluster.balancer_child import BalancerChild
from cluster.bootstrap_host import WORKER_ID as BOOTSTRAP_ID
from cluster.bootstrap_host import BootstrapSettings
from cluster.order_book import OrderStatus
from cluster.orders import Order
from cluster.progress import Progress
from cluster.runtime import RuntimeFolder, SupervisedWorker
from cluster.settings import BalancerIdentity, ClusterSettings, EngineIdentity
from cluster.signals import StopSignals
from engine.beat import Beat
from engine.model_source import DEMO
from engine.settings import EngineSettings

if TYPE_CHECKING:
    from cluster.supervisor_child import SupervisorChild

LOOPBACK = "127.0.0.1"
DEMO_NAME = "SmolLM2-135M-Instruct"
HOSTED = {
    Role.PREFILL: "prefill.worker:PrefillWorker",
    Role.DECODE: "decode.worker:DecodeWorker",
    Role.BOOTSTRAP: "cluster.bootstrap_host:BootstrapHost",
}
STREAM_GRACE_S = 3.0  # how long streams may go on after Ctrl-C
_NUM_OTHER_ACTORS = 2  # the supervisor and the bootstrap service
_READY_TIMEOUT_S = 2.0
_BALANCER_STOP_S = 3.0
_SUPERVISOR_STOP_S = 8.0
_STOP_POLL_S = 0.02


class RunningCluster:
    """`start`, then `tend` often, then `stop`; all on the main thread, whose end ends the rest."""

    def __init__(self, settings: ClusterSettings, model_dir: Path, folder: RuntimeFolder) -> None:
        self.settings = settings
        self.model_name = settings.served_model_name or _name_of(settings.model)
        self._model_dir = str(model_dir)
        self._folder = folder
        self._secret_file = settings.secret_file or folder.write_secret("secret")
        given = settings.admin_key_file
        self.admin_key_file = None if given is None else str(Path(given).absolute())
        if given is None and settings.endpoint and not is_loopback(settings.host):
            # What `/debug/` shows is not for everybody who reaches the endpoint, but for who runs it.
            self.admin_key_file = folder.write_secret("admin-key")
        self._balancer: BalancerChild | None = None
        self._supervisor: SupervisorChild | None = None
        self._bind_host = LOOPBACK
        self._bootstrap = ""
        self._seen: tuple[SupervisedWorker, ...] = ()
        self.orders: tuple[OrderStatus, ...] = ()  # the latest; `tend` replaces it
        self._beat = Beat.from_environment()

    @property
    def bootstrap(self) -> str:
        """Where its bootstrap service listens; valid after `start`."""
        return self._bootstrap

    @property
    def url(self) -> str:
        """Where clients on this machine reach it; the bootstrap service's without an endpoint."""
        if not self.settings.endpoint:
            return self._bootstrap
        host = _local(self.settings.host)
        scheme = "http" if self.settings.ssl_certfile is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.settings.port}"

    @property
    def last_drain_s(self) -> float:
        """What engines may take for their rooms when all ends.

        With a balancer here it is the one that gives its streams time.
        """
        return 0.0 if self.settings.endpoint else float(self.settings.drain_s)

    def start(self, progress: Progress) -> None:
        """Begin to start everything; returns when Ray runs and the rest is on its way."""
        if self.settings.owns_ray:
            self._bootstrap = self._bootstrap_endpoint()
            self._start_balancer()  # it loads while Ray does
            progress.say("ray", "starting")
            num_actors = self.settings.num_engines + _NUM_OTHER_ACTORS
            ray_session.start_private(self._folder.path, num_actors)
        else:
            progress.say("ray", f"joining {self.settings.ray_address}")
            ray_session.join(self.settings.ray_address)
            self._bind_host = ray_session.node_address()
            self._bootstrap = self._bootstrap_endpoint()
            self._start_balancer()
        progress.say("ray", "running", done=True)
        self._start_supervisor()

    def tend(self) -> tuple[SupervisedWorker, ...]:
        """Restart what `up` itself looks after, and tell how every worker is.

        Raises RemoteFault when the supervisor dies again and again.
        """
        assert self._supervisor is not None
        self._beat.touch()
        if self._balancer is not None:
            self._balancer.tend(time.monotonic())
        supervision = self._supervisor.tend(time.monotonic())
        if supervision is None:
            return self._seen
        seen, self.orders = supervision.workers, supervision.orders
        if self._balancer is not None:
            balancer = self._balancer.status(time.monotonic())
            if balancer.state == "starting" and self.is_ready():
                self._balancer.serving(time.monotonic())
            seen = (*seen, balancer)
        if seen != self._seen:
            self._seen = seen
            self._folder.write_supervision(seen)
        return self._seen

    def is_ready(self) -> bool:
        """Whether the balancer has a pair that can serve; without one, whether every role is served.

        More engines than the joined Ray has room for yet are no reason to give up.
        """
        if self._balancer is None:
            serving = {worker.role for worker in self._seen if worker.state == "serving"}
            return serving >= {role.value for role in HOSTED}
        connection = self._connection()
        try:
            connection.request("GET", "/ready")
            ready = connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return ready

    def order(self, order: Order) -> int | str:
        """Have an order carried out: its number, or why it is not. On any thread."""
        assert self._supervisor is not None
        return self._supervisor.order(order)

    def stop(self, signals: StopSignals) -> None:
        """End all parts in order, clients first; whatever remains is for the caller to kill."""
        if self._balancer is not None:
            self._balancer.ask_to_stop()
            _wait_for(self._balancer.has_ended, STREAM_GRACE_S + _BALANCER_STOP_S, signals)
        if self._supervisor is not None:
            drain_s = self.last_drain_s if signals.terminated else 0.0
            self._supervisor.ask_to_stop(drain_s)
            _wait_for(self._supervisor.has_ended, drain_s + _SUPERVISOR_STOP_S, signals)
        ray_session.leave()

    def _bootstrap_endpoint(self) -> str:
        port = self.settings.bootstrap_port
        if port and not runtime.port_is_free(self._bind_host, port):
            raise ConfigError(f"bootstrap_port={port}: already in use on {self._bind_host}")
        return f"tcp://{self._bind_host}:{port or runtime.free_port(self._bind_host)}"

    def _connection(self) -> http.client.HTTPConnection:
        host, port = _local(self.settings.host), self.settings.port
        if self.settings.ssl_certfile is None:
            return http.client.HTTPConnection(host, port, timeout=_READY_TIMEOUT_S)
        context = ssl.create_default_context()
        context.check_hostname = False  # the certificate is for the name that clients use
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=_READY_TIMEOUT_S, context=context)

    def _start_balancer(self) -> None:
        if not self.settings.endpoint:
            return
        identity = BalancerIdentity(
            model_dir=self._model_dir,
            model_name=self.model_name,
            bootstrap=self._bootstrap,
            bind_host=self._bind_host,
            secret_file=self._secret_file,
            admin_key_file=self.admin_key_file,
            shutdown_grace_s=STREAM_GRACE_S,
        )
        values = asdict(self.settings.balancer(identity))
        arguments = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in {**values, "die_with": os.getpid()}.items()
            if value is not None
        ]
        self._balancer = BalancerChild(arguments, time.monotonic())
        self._balancer.tend(time.monotonic())

    def _start_supervisor(self) -> None:
        from cluster.supervisor_child import SupervisorChild  # late, as Ray in `ray_session`

        arguments = {
            "specs": self._specs(),
            "bootstrap": self._bootstrap,
            "secret_file": self._secret_file,
            "log": self.settings.log,
            "start_timeout_s": self.settings.start_timeout_s,
            "drain_s": self.settings.drain_s,
        }
        self._supervisor = SupervisorChild(arguments, time.monotonic())

    def _specs(self) -> list[WorkerSpec]:
        specs = [self._spec(BOOTSTRAP_ID, Role.BOOTSTRAP, self._bootstrap_settings())]
        for role, count in (
            (Role.PREFILL, self.settings.prefill),
            (Role.DECODE, self.settings.decode),
        ):
            for index in range(count):
                worker_id = f"{role.value}-{index}"
                specs.append(self._spec(worker_id, role, self._engine_settings(worker_id)))
        return specs

    def _spec(self, worker_id: str, role: Role, settings: Any) -> WorkerSpec:
        log, drain_s = self.settings.log, self.settings.drain_s
        return WorkerSpec(worker_id, role, HOSTED[role], settings, log, drain_s)

    def _bootstrap_settings(self) -> BootstrapSettings:
        return BootstrapSettings(self._bootstrap, self._secret_file)

    def _engine_settings(self, worker_id: str) -> EngineSettings:
        return self.settings.engine(
            EngineIdentity(
                worker_id=worker_id,
                model_dir=self._model_dir,
                model_name=self.model_name,
                bootstrap=self._bootstrap,
                bind_host=LOOPBACK if self.settings.owns_ray else NODE_ADDRESS,
                secret_file=self._secret_file,
            )
        )


def _wait_for(ended: Callable[[], bool], timeout_s: float, signals: StopSignals) -> None:
    deadline = time.monotonic() + timeout_s
    while not ended() and not signals.insisted and time.monotonic() < deadline:
        time.sleep(_STOP_POLL_S)


def _name_of(model: str) -> str:
    """What clients ask for: the hub's own name, or a folder's."""
    if model == DEMO:
        return DEMO_NAME
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


def _local(host: str) -> str:
    """The address at which this machine itself reaches a server bound to `host`."""
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
