"""The patches that helm and kubectl send: merge, strategic merge and apply."""

from typing import Any

# By what a strategic merge tells items of a list apart, in the order of trial.
_LIST_KEYS = ("name", "containerPort", "port", "mountPath", "ip")


def merged(base: Any, patch: Any, strategic: bool) -> Any:
    """`base` with `patch` in it (RFC 7386; `strategic`: lists of objects by their keys)."""
    if isinstance(patch, dict):
        return _merged_mapping(base if isinstance(base, dict) else {}, patch, strategic)
    if strategic and isinstance(base, list) and isinstance(patch, list):
        items = [*base, *patch]
        for key in _LIST_KEYS:
            if items and all(isinstance(item, dict) and key in item for item in items):
                return _merged_list(base, patch, key)
    return patch


def _merged_mapping(base: dict[str, Any], patch: dict[str, Any], strategic: bool) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(base)
    for key, value in patch.items():
        if key.startswith("$"):  # $setElementOrder and the like
            continue
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(base.get(key), value, strategic)
    return result


def _merged_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = {item[key]: item for item in base}
    for item in patch:
        if item.get("$patch") == "delete":
            result.pop(item[key], None)
        else:
            result[item[key]] = merged(result.get(item[key]), item, strategic=True)
    return list(result.values())
