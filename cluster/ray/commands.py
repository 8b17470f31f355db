"""The flags of `ray-up`, `ray-down`, `ray-example` and of what they run on the head.

Owns how `up`'s settings travel: they are checked here and given to the head's `up` as flags.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from bootstrap.identity import Role
from cluster.ray import cluster_file
from cluster.settings import ClusterSettings, load, read_config

START_TIMEOUT_S = 900  # for hosts that a cloud makes, and for downloads

_EXAMPLES = """\
FILE is a cluster file of Ray's launcher; begin with one of `pdserve ray-example`. All flags of `up` but
--ray-address and --secret-file may follow; files that they name are the head's. The cluster file's setup
commands put a model into ~/.pdserve/model on every host. --start-timeout-s is for all of it. A second run
starts what is missing, and does nothing when all serve.

examples:
  pdserve ray-up onprem.yaml --host 0.0.0.0 --served-model-name smollm2
  ray exec onprem.yaml '~/pdserve/bin/pdserve status'
"""
_OWN = ("ray_address", "secret_file")
_DEFAULTS = {
    "model": cluster_file.MODEL,
    "prefill": "one in every slot",
    "decode": "one in every slot",
    "start_timeout_s": START_TIMEOUT_S,
}


def add_commands(
    add: Callable[..., Any], add_setting: Callable[..., Any], number: Callable[..., Any]
) -> None:
    """The commands; `add(name, run, text)` makes a parser, `add_setting` one of its flags."""
    parser = add("ray-up", _ray_up, "bring up a cluster of several hosts with Ray's launcher")
    parser.epilog = _EXAMPLES
    parser.add_argument("file", metavar="FILE.yaml", help="Ray's cluster file")
    parser.add_argument("--config", metavar="FILE.yaml", help="read settings of `up` from a file")
    for entry in fields(ClusterSettings):
        if entry.name not in _OWN:
            default = _DEFAULTS.get(entry.name, entry.default)
            add_setting(parser, entry.name, default, entry.metadata)
    parser = add(
        "ray-down",
        _ray_down,
        "end such a cluster and remove its secrets, model and logs from its hosts",
    )
    parser.add_argument("file", metavar="FILE.yaml", help="the same cluster file")
    parser = add("ray-example", _ray_example, "print a cluster file to begin with")
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(cluster_file.EXAMPLES)}")
    _add_head(add, number)


def _add_head(add: Callable[..., Any], number: Callable[..., Any]) -> None:
    parser = add("ray-head", _ray_head, "what ray-up and ray-down run on the head", listed=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("look", help="tell what runs")
    start = actions.add_parser("start", help="have `up` run, and watch it until it serves")
    start.add_argument("num_engines", type=number("num_engines", int))
    start.add_argument("timeout_s", type=number("timeout_s", float))
    start.add_argument("flags", nargs=argparse.REMAINDER, help="of `up`, after --")
    actions.add_parser("stop", help="end it")


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Settings as flags of `up`."""
    flags = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags.append(f"--{flag}={value}")
    return flags


def _ray_up(arguments: dict[str, Any]) -> int:
    file = cluster_file.read(Path(arguments.pop("file")))
    config = arguments.pop("config")
    from cluster.ray import launcher

    values = {} if config is None else read_config(Path(config))
    values |= arguments
    engines = launcher.expected(file, values.get("prefill"), values.get("decode"))
    values |= {"prefill": engines[Role.PREFILL], "decode": engines[Role.DECODE]}
    values |= {"ray_address": "auto", "secret_file": cluster_file.SECRET}
    values.setdefault("model", _DEFAULTS["model"])
    timeout_s = values.setdefault("start_timeout_s", START_TIMEOUT_S)
    load(values, None)  # what is wrong is told here, before any host is touched
    return launcher.ray_up(file, flags_of(values), sum(engines.values()), timeout_s)


def _ray_down(arguments: dict[str, Any]) -> int:
    from cluster.ray import launcher

    return launcher.ray_down(cluster_file.read(Path(arguments["file"])))


def _ray_example(arguments: dict[str, Any]) -> int:
    print(cluster_file.example(arguments["name"]), end="")
    return 0


def _ray_head(arguments: dict[str, Any]) -> int:
    from cluster.ray import head

    if arguments["action"] == "start":
        flags = arguments["flags"]
        flags = flags[1:] if flags[:1] == ["--"] else flags
        return head.start(flags, arguments["num_engines"], arguments["timeout_s"])
    return head.look() if arguments["action"] == "look" else head.stop()
