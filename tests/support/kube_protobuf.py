"""Kubernetes' protobuf envelope, as far as helm uses it: it stores its releases as Secrets in it.

Field numbers are those of `runtime.Unknown`, `ObjectMeta` and `Secret` in Kubernetes' generated.proto.
"""

import base64
from typing import Any

MAGIC = b"k8s\0"

_VARINT, _BYTES = 0, 2


def decode(raw: bytes) -> dict[str, Any]:
    """The Secret, or the DeleteOptions, in an envelope."""
    envelope = dict(_fields(raw[len(MAGIC) :]))
    kind_fields = dict(_fields(envelope[1]))
    api_version, kind = kind_fields[1].decode(), kind_fields[2].decode()
    if kind == "DeleteOptions":
        return {"apiVersion": api_version, "kind": kind}
    assert kind == "Secret", f"protobuf of a {kind}"
    body = _fields(envelope[2])
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": _metadata(dict(body)[1]),
        "data": {key: base64.b64encode(value).decode() for key, value in _map(body, 2).items()},
        "type": dict(body)[3].decode(),
    }


def _metadata(raw: bytes) -> dict[str, Any]:
    fields = _fields(raw)
    single = dict(fields)
    metadata: dict[str, Any] = {
        name: single[number].decode()
        for number, name in ((1, "name"), (3, "namespace"), (6, "resourceVersion"))
        if single.get(number)
    }
    for number, name in ((11, "labels"), (12, "annotations")):
        found = {key: value.decode() for key, value in _map(fields, number).items()}
        if found:
            metadata[name] = found
    return metadata


def _map(fields: list[tuple[int, Any]], number: int) -> dict[str, bytes]:
    entries = [dict(_fields(value)) for found, value in fields if found == number]
    return {entry[1].decode(): entry.get(2, b"") for entry in entries}


def _fields(raw: bytes) -> list[tuple[int, Any]]:
    """(number, value) in order; values are bytes or integers."""
    position, found = 0, []
    while position < len(raw):
        tag, position = _varint(raw, position)
        if tag & 7 == _BYTES:
            length, position = _varint(raw, position)
            found.append((tag >> 3, raw[position : position + length]))
            position += length
        else:
            assert tag & 7 == _VARINT, f"wire type {tag & 7}"
            value, position = _varint(raw, position)
            found.append((tag >> 3, value))
    return found


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
