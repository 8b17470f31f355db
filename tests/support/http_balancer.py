"""The real load balancer in a thread of this process, for clients on real HTTP."""

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import openai
import uvicorn

from bootstrap.identity import Peer
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.serve import listen, serve
from cluster.balancer.settings import BalancerSettings
from engine.tokenizer import Tokenizer
from tests.support.waiting import wait_for


class HttpBalancer:
    """Serves `model_dir` at `url` within the `with` block."""

    def __init__(self, bootstrap: str, model_dir: Path, model_name: str, **settings: Any) -> None:
        self._settings = BalancerSettings(
            host="127.0.0.1",
            port=0,
            bootstrap=bootstrap,
            model_dir=str(model_dir),
            model_name=model_name,
            **settings,
        )
        self._listener = listen("127.0.0.1", 0)
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name="http-balancer", daemon=True)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "HttpBalancer":
        self._thread.start()
        wait_for(lambda: self._server is not None and self._server.started, what="a server")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listener.close()

    def client(self) -> openai.OpenAI:
        """The official client; no retries, so that errors are seen."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)

    def get(self, path: str) -> httpx.Response:
        """One GET."""
        return httpx.get(f"{self.url}{path}", timeout=60)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until `/ready` is 200."""
        wait_for(lambda: self.get("/ready").status_code == 200, timeout_s, "readiness")

    @property
    def server(self) -> uvicorn.Server:
        """What serves; within the `with` block."""
        assert self._server is not None
        return self._server

    @property
    def inbox(self) -> Peer:
        """Where workers send tokens to."""
        dispatcher: Dispatcher = self.server.config.app.state.dispatcher
        return dispatcher.core.me

    def _run(self) -> None:
        tokenizer = Tokenizer(self._settings.model_dir)
        asyncio.run(serve(self._settings, tokenizer, self._listener, self._take_server))

    def _take_server(self, server: uvicorn.Server) -> None:
        self._server = server
