"""A Kubernetes API server in memory, good enough for helm 3, helm 4 and kubectl; loopback only.

Owns HTTP: paths, patches and watches. What objects may be is `kube_store`'s.
"""

import copy
import json
import re
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.support import kube_discovery as discovery
from tests.support import kube_protobuf
from tests.support.kube_merge import merged
from tests.support.kube_store import ApiError, Event, Key, KubeStore, Manifest

MAX_WATCH_S = 60.0
_INITIAL_END = {"k8s.io/initial-events-end": "true"}  # without it a WatchList never ends
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


class KubeApi:
    """Serves from entry to exit; `store` may be looked at meanwhile."""

    def __init__(self, version: str, custom_resources: bool = False) -> None:
        self.store = KubeStore(version)
        self.table = dict(discovery.RESOURCES)
        if custom_resources:
            self.table |= discovery.CUSTOM_RESOURCES
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.api = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "KubeApi":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def write_kubeconfig(self, path: Path) -> None:
        """For clients; no credentials."""
        named = {"name": "test"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**named, "cluster": {"server": self.url}}],
            "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
            "users": [{**named, "user": {}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))

    def objects(self, resource: str) -> dict[str, Manifest]:
        """Of that resource, by name."""
        with self.store.changed:
            return {
                k.name: copy.deepcopy(o) for k, o in self.store.items() if k.resource == resource
            }


class _Selection:
    """Which objects a list or a watch is about."""

    def __init__(self, key: Key, query: dict[str, str]) -> None:
        self._key = key
        self._labels = _equalities(query.get("labelSelector", ""))
        self._name = _equalities(query.get("fieldSelector", "")).get("metadata.name")

    def holds(self, key: Key, body: Manifest) -> bool:
        labels = body["metadata"].get("labels") or {}
        return (
            (key.group_version, key.resource) == (self._key.group_version, self._key.resource)
            and self._key.namespace in ("", key.namespace)
            and self._name in (None, key.name)
            and all(labels.get(name) == value for name, value in self._labels.items())
        )


def _equalities(selector: str) -> dict[str, str]:
    return dict(re.split("==?", part, maxsplit=1) for part in selector.split(",") if part)  # type: ignore[misc]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at the store."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _answer(self) -> None:
        api: KubeApi = self.server.api  # type: ignore[attr-defined]
        self._store, self._table = api.store, api.table
        url = urllib.parse.urlparse(self.path)
        self._query = dict(urllib.parse.parse_qsl(url.query))
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._route([part for part in url.path.split("/") if part], raw)
        except ApiError as error:
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            told = {"message": str(error), "reason": error.reason, "code": error.code}
            self._send(error.code, {**status, **told})

    def _route(self, parts: list[str], raw: bytes) -> None:
        known = discovery.document(parts, self._table, self._store.version)
        if known is not None:
            return self._send(200, known)
        group_version, rest = (
            (parts[1], parts[2:]) if parts[:1] == ["api"] else ("/".join(parts[1:3]), parts[3:])
        )
        missing = ApiError(404, "NotFound", "the server could not find the requested resource")
        if group_version not in self._table:
            raise missing
        if not rest:
            return self._send(200, discovery.resource_list(group_version, self._table))
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if rest[0] not in self._table[group_version]:
            raise missing
        key = Key(group_version, rest[0], namespace, rest[1] if len(rest) > 1 else "")
        return self._do(key, raw)

    def _do(self, key: Key, raw: bytes) -> None:
        dry_run = self._query.get("dryRun") == "All"
        if self.command == "GET" and self._query.get("watch") in ("true", "1"):
            return self._watch(key)
        with self._store.changed:
            if self.command == "GET":
                found = self._store.get(key) if key.name else self._list(key)
                code, body = 200, copy.deepcopy(found)
            elif self.command == "DELETE":
                gone = self._store.delete(key, dry_run)["metadata"]
                details = {"name": key.name, "kind": key.resource, "uid": gone.get("uid", "")}
                code, body = (
                    200,
                    {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details},
                )
            else:
                code, key, new = self._written(key, raw)
                body = copy.deepcopy(self._store.write(key, new, dry_run))
        return self._send(code, body)

    def _list(self, key: Key) -> Manifest:
        selection = _Selection(key, self._query)
        kind = self._table[key.group_version][key.resource]
        items = [body for found, body in self._store.items() if selection.holds(found, body)]
        metadata = {"resourceVersion": self._store.resource_version}
        return {
            "kind": f"{kind}List",
            "apiVersion": key.group_version,
            "metadata": metadata,
            "items": items,
        }

    def _written(self, key: Key, raw: bytes) -> tuple[int, Key, Manifest]:
        """The answer's code, the key, and what the object becomes."""
        is_protobuf = raw.startswith(kube_protobuf.MAGIC)
        body = kube_protobuf.decode(raw) if is_protobuf else yaml.safe_load(raw)
        kind = (self.headers.get("Content-Type") or "").split(";")[0]
        if self.command == "POST":
            metadata = body["metadata"]
            prefix = metadata.get("generateName", "")
            name = metadata.get("name") or prefix + uuid.uuid4().hex[:5]
            key = Key(key.group_version, key.resource, key.namespace, name)
            if self._store.find(key) is not None:
                raise ApiError(409, "AlreadyExists", f'{key.resource} "{name}" already exists')
            return 201, key, self._typed(key, body)
        old = self._store.find(key)
        if old is None and kind != _APPLY:
            self._store.get(key)  # says what is missing
        if self.command == "PATCH" and kind != _APPLY:  # whoever applies owns the whole object here
            before = {name: value for name, value in (old or {}).items() if name != "status"}
            body = merged(copy.deepcopy(before), body, strategic=kind != _MERGE)
        return (200 if old else 201), key, self._typed(key, body)

    def _typed(self, key: Key, body: Manifest) -> Manifest:
        kind = self._table[key.group_version][key.resource]
        return {"apiVersion": key.group_version, "kind": kind, **body}

    def _watch(self, key: Key) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            self._send_events(key, _Selection(key, self._query))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has seen enough
            return

    def _send_events(self, key: Key, selection: _Selection) -> None:
        store, since = self._store, int(self._query.get("resourceVersion") or 0)
        end = time.monotonic() + min(float(self._query.get("timeoutSeconds") or 300), MAX_WATCH_S)
        with store.changed:
            first = [copy.deepcopy(o) for k, o in store.items() if selection.holds(k, o)]
            position = len(store.log)
        if since:
            first, position = [], _position(store.log, since)
        for body in first:
            self._event("ADDED", body)
        if self._query.get("sendInitialEvents") == "true":
            metadata = {"resourceVersion": store.resource_version, "annotations": _INITIAL_END}
            kind = self._table[key.group_version][key.resource]
            bookmark = {"kind": kind, "apiVersion": key.group_version, "metadata": metadata}
            self._event("BOOKMARK", bookmark)
        while time.monotonic() < end:
            with store.changed:
                if position == len(store.log):
                    store.changed.wait(1.0)
                fresh, position = store.log[position:], len(store.log)
            for event in fresh:
                if selection.holds(event.key, event.body):
                    self._event(event.kind, event.body)

    def _event(self, kind: str, body: Manifest) -> None:
        line = json.dumps({"type": kind, "object": body}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _send(self, code: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _position(log: list[Event], since: int) -> int:
    """Of the first event after version `since`."""
    return next((i for i, event in enumerate(log) if event.version > since), len(log))
