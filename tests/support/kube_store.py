"""The objects of an API server in memory, every write checked, and the log that watches read.

Owns validation and versions. Knows no HTTP. One lock guards everything.
"""

import copy
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support import kube_status
from tests.support.kube_rules import Invalid, check_rules
from tests.support.kube_schemas import SchemaError, check_schema

Manifest = dict[str, Any]


class ApiError(Exception):
    """What the server answers instead of an object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True)
class Key:
    """Where an object lies."""

    group_version: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the log."""

    version: int
    kind: str  # ADDED, MODIFIED, DELETED
    key: Key
    body: Manifest


class KubeStore:
    """Objects by key; the log's versions are those of the objects in it."""

    def __init__(self, version: str) -> None:
        self.version = version  # of Kubernetes, as 1.33
        self.changed = threading.Condition()
        self.log: list[Event] = []
        self._objects: dict[Key, Manifest] = {}
        self._counter = 1
        namespace = {"metadata": {"name": "default"}, "apiVersion": "v1", "kind": "Namespace"}
        self._objects[Key("v1", "namespaces", "", "default")] = namespace

    @property
    def resource_version(self) -> str:
        """Of the latest write."""
        return str(self._counter)

    def get(self, key: Key) -> Manifest:
        """Raises ApiError when it is not there."""
        if key not in self._objects:
            raise ApiError(404, "NotFound", f'{key.resource} "{key.name}" not found')
        return self._objects[key]

    def find(self, key: Key) -> Manifest | None:
        """The object, if there is one."""
        return self._objects.get(key)

    def items(self) -> Iterator[tuple[Key, Manifest]]:
        """A copy of the list, not of the objects."""
        return iter(list(self._objects.items()))

    def write(self, key: Key, new: Manifest, dry_run: bool) -> Manifest:
        """Create or replace; what is stored. Raises ApiError for what an API server refuses."""
        old = self._objects.get(key)
        if key.namespace and Key("v1", "namespaces", "", key.namespace) not in self._objects:
            raise ApiError(404, "NotFound", f'namespaces "{key.namespace}" not found')
        new["metadata"]["name"] = key.name
        if key.namespace:
            new["metadata"].setdefault("namespace", key.namespace)
        self._check(new, old)
        self._stamp(new, old)
        if not dry_run:
            self._commit("MODIFIED" if old else "ADDED", key, new)
            if new["kind"] == "Deployment":
                self._make_replica_set(key, new)
        return new

    def delete(self, key: Key, dry_run: bool) -> Manifest:
        """Remove it and what it owns; what it was."""
        body = self.get(key)
        if not dry_run:
            del self._objects[key]
            self._counter += 1
            body = copy.deepcopy(body)
            body["metadata"]["resourceVersion"] = self.resource_version
            self._note("DELETED", key, body)
            self._delete_owned(body)
        return body

    def _check(self, new: Manifest, old: Manifest | None) -> None:
        server = ("resourceVersion", "uid", "generation", "creationTimestamp", "managedFields")
        metadata = {k: v for k, v in new["metadata"].items() if k not in server}
        body = {key: value for key, value in new.items() if key != "status"}
        try:
            check_schema({**body, "metadata": metadata}, self.version)
            check_rules(new, old)
        except (SchemaError, Invalid) as error:
            raise ApiError(422, "Invalid", str(error)) from error

    def _stamp(self, new: Manifest, old: Manifest | None) -> None:
        metadata, before = new["metadata"], (old or {}).get("metadata", {})
        metadata["uid"] = before.get("uid") or str(uuid.uuid4())
        metadata["creationTimestamp"] = kube_status.NOW
        same = old is not None and old.get("spec") == new.get("spec")
        metadata["generation"] = before.get("generation", 0) + (0 if same else 1)
        kube_status.fill_in(new)

    def _commit(self, kind: str, key: Key, body: Manifest) -> None:
        self._counter += 1
        body["metadata"]["resourceVersion"] = self.resource_version
        self._objects[key] = body
        self._note(kind, key, body)

    def _note(self, kind: str, key: Key, body: Manifest) -> None:
        self.log.append(Event(self._counter, kind, key, copy.deepcopy(body)))
        self.changed.notify_all()

    def _make_replica_set(self, key: Key, deployment: Manifest) -> None:
        made = kube_status.replica_set(deployment)
        self._delete_owned(deployment)
        name = made["metadata"]["name"]
        self._commit("ADDED", Key("apps/v1", "replicasets", key.namespace, name), made)

    def _delete_owned(self, owner: Manifest) -> None:
        uid = owner["metadata"].get("uid")
        for key, body in list(self._objects.items()):
            owners = body["metadata"].get("ownerReferences") or ()
            if any(one["uid"] == uid for one in owners):
                del self._objects[key]
