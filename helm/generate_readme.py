"""Writes the table of values into the chart's README: `python helm/generate_readme.py`.

A key's text is the comment `# -- ...` over it in values.yaml; a key without one is a group, or a bug that
this script refuses. Defaults are shown as JSON.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "pdserve"
README = CHART / "README.md"
BEGIN = "<!-- values: written by helm/generate_readme.py -->\n"
END = "<!-- end of values -->"

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):")
_TEXT = re.compile(r"^ *# -- (?P<text>.+)$")


def documented(values: str) -> Iterator[tuple[str, str]]:
    """Each key with a text, in the file's order, as (dotted path, text)."""
    path: list[tuple[int, str]] = []
    text = ""
    for line in values.splitlines():
        found = _TEXT.match(line)
        key = _KEY.match(line)
        if found:
            text = found["text"]
        elif key:
            indent = len(key["indent"])
            path = [(depth, name) for depth, name in path if depth < indent]
            path.append((indent, key["key"]))
            if text:
                yield ".".join(name for _, name in path), text
            text = ""


def undocumented(values: dict[str, Any], known: set[str], prefix: str = "") -> Iterator[str]:
    """Leaves of the values for which neither they nor a group above them has a text."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if path in known:
            continue
        if isinstance(value, dict) and value:
            yield from undocumented(value, known, f"{path}.")
        else:
            yield path


def table() -> str:
    """The rows; raises ValueError for keys without a text."""
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    entries = dict(documented(text))
    missing = list(undocumented(values, set(entries)))
    if missing:
        raise ValueError(f"values.yaml: no `# --` text over {', '.join(missing)}")
    rows = ["| key | default | what it does |", "| --- | --- | --- |"]
    for path, meaning in entries.items():
        default = values
        for key in path.split("."):
            default = default[key]
        shown = json.dumps(default).replace("|", "\\|")
        rows.append(f"| `{path}` | `{shown}` | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def readme() -> str:
    """What the README should hold."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(readme())
