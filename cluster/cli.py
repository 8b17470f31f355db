"""The command line: `pdserve` and `python -m cluster` are the same program.

Owns how arguments are read and which exit code an error has. Each command is a module of its own,
imported when it is chosen. The flags of `up` come from `cluster.settings`.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, NoReturn

from bootstrap.errors import ConfigError, PdserveError
from bootstrap.identity import Role
from cluster import logs, operating
from cluster.balancer.settings import LOG_LEVELS, BalancerSettings
from cluster.bench import settings as bench_settings
from cluster.endpoint import DEFAULT_URL
from cluster.processes import die_with_parent
from cluster.ray import commands as ray_commands
from cluster.settings import ENDPOINT_HELP, ClusterSettings, load
from cluster.version import installed_version

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130

_EXAMPLES = """\
examples:
  pdserve up                                  the demo model, one prefill and one decode engine
  pdserve up --model ./my-model --decode 2 --port 9000
  pdserve up --config cluster.yaml --log-level debug
  pdserve status                              who is there, what they do, which pairs can serve
  pdserve doctor                              what is wrong, why it matters, what to do
  pdserve chat --system "Answer briefly."     talk to the model
  pdserve bench --rate 2 --html report.html    a load test
  pdserve restart                             replace the engines one by one, losing no request
  pdserve down                                end the running `up`

`status` and `chat` show the API key of the environment variable PDSERVE_API_KEY, and trust the
certificates of SSL_CERT_FILE.
"""
_UP_EXAMPLES = """\
Every flag is also a key of the --config file, with underscores: --num-blocks 512 is
`num_blocks: 512`, --no-prefix-caching is `prefix_caching: false`. A flag wins over the file.

examples:
  pdserve up
  pdserve up --model HuggingFaceTB/SmolLM2-360M-Instruct --num-blocks 2048
  pdserve up --model ./my-model --prefill 2 --decode 2 --transfer mooncake
  pdserve up --ray-address auto --secret-file /etc/pdserve/secret --host 0.0.0.0
"""
_ADMIN_KEY = (
    "an administrator's key, where one is needed: this user's own `up` tells it, elsewhere the file\n"
    "that PDSERVE_ADMIN_KEY_FILE names does, or PDSERVE_API_KEY holds it"
)

_BALANCER_HELP = {
    "host": "address that clients connect to",
    "port": "port that clients connect to; 0 lets the system pick",
    "bootstrap": "the bootstrap service, tcp://ADDR:PORT",
    "model_dir": "the model's folder, for its tokenizer",
    "model_name": "the name clients ask for",
    "bind_host": "address that workers send tokens to",
    "secret_file": "the cluster secret",
    "request_timeout_s": "a request without an answer after so long fails",
    "max_attempts": "most engine pairs tried for one request",
    "pair_wait_s": "how long a request waits for a pair that can serve it",
    "silence_s": "a worker that says nothing of a request for so long has lost it",
    "drain_delay_s": "how long to go on serving, unready, after SIGTERM",
    "shutdown_grace_s": "how long streams may go on after that",
    "num_text_threads": "threads that tokenize",
    **ENDPOINT_HELP,
    "log_level": f"one of {', '.join(LOG_LEVELS)}",
    "log_format": f"one of {', '.join(logs.FORMATS)}",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as for every other wrong setting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 failed, 2 a wrong setting, 130 interrupted."""
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        arguments = vars(_parser().parse_args(argv))
        command: Callable[[dict[str, Any]], int] = arguments.pop("command")
        return command(arguments)
    except ConfigError as error:
        print(f"pdserve: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except PdserveError as error:
        print(f"pdserve: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pdserve",
        description="Serve a language model with prefill and decode on separate engines.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pdserve {installed_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_up(commands)
    _add_status(commands)
    _add_doctor(commands)
    _add_top(commands)
    _add_down(commands)
    operating.add_commands(partial(_add, commands), _number)
    _add_chat(commands)
    _add_bench(commands)
    ray_commands.add_commands(partial(_add, commands), _add_setting, _number)
    _add_fetch(commands)
    _add_balancer(commands)
    return parser


def _add(
    commands: Any,
    name: str,
    run_it: Callable[[dict[str, Any]], int],
    text: str,
    *,
    listed: bool = True,
) -> Any:
    parser = commands.add_parser(
        name,
        **({"help": text} if listed else {}),
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=run_it)
    return parser


def _add_up(commands: Any) -> None:
    parser = _add(commands, "up", _up, "start a cluster and serve until Ctrl-C")
    parser.epilog = _UP_EXAMPLES
    parser.add_argument("--config", metavar="FILE.yaml", help="read settings from a file")
    groups: dict[str, Any] = {}
    for entry in fields(ClusterSettings):
        title = entry.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_setting(groups[title], entry.name, entry.default, entry.metadata)


def _add_setting(group: Any, name: str, default: Any, metadata: Any) -> None:
    """One key as a flag that is absent unless given, so that the config file may speak."""
    flag = "--" + name.replace("_", "-")
    text = metadata["help"] if default is None else f"{metadata['help']} (default: {default})"
    text = text.replace("%", "%%")
    kind = metadata["kind"]
    if kind is bool:
        action = argparse.BooleanOptionalAction
        group.add_argument(flag, action=action, default=argparse.SUPPRESS, help=text)
        return
    group.add_argument(
        flag,
        type=_number(name, kind) if kind in (int, float) else str,
        default=argparse.SUPPRESS,
        metavar=metadata["metavar"],
        help=text,
    )


def _number(name: str, kind: Any) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{name}={text!r}: {wanted} is needed") from None

    return parse


def _add_status(commands: Any) -> None:
    parser = _add(commands, "status", _status, "show the workers and which pairs can serve")
    parser.epilog = "exit code: 0 when requests can be served, 1 when not"
    parser.add_argument("--url", help=f"the endpoint (default: the running `up`, or {DEFAULT_URL})")
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="the same facts for programs"
    )


def _add_top(commands: Any) -> None:
    parser = _add(commands, "top", _top, "watch a cluster: engines, pages, requests")
    parser.epilog = _ADMIN_KEY
    parser.add_argument("--url", help=f"the endpoint (default: the running `up`, or {DEFAULT_URL})")
    parser.add_argument("--once", action="store_true", help="print it once and exit")


def _add_doctor(commands: Any) -> None:
    text = "find what is wrong with a cluster, or why a request is where it is"
    parser = _add(commands, "doctor", _doctor, text)
    parser.epilog = (
        "exit code: 0 when nothing is wrong, or when REQUEST_ID is known; 1 when something is wrong\n"
        + _ADMIN_KEY
    )
    parser.add_argument(
        "request_id",
        nargs="?",
        metavar="REQUEST_ID",
        help="the client's X-Request-Id, or the id of its answer",
    )
    parser.add_argument("--url", help=f"the endpoint (default: the running `up`, or {DEFAULT_URL})")
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="all facts for programs"
    )


def _add_down(commands: Any) -> None:
    parser = _add(commands, "down", _down, "end a running `up` of this user")
    parser.add_argument(
        "--port", type=_number("port", int), help="which one, when several are running"
    )


def _add_chat(commands: Any) -> None:
    parser = _add(commands, "chat", _chat, "talk to the model in the terminal")
    parser.add_argument("--url", help=f"the endpoint (default: the running `up`, or {DEFAULT_URL})")
    parser.add_argument("--model", help="the model's name (default: the first one served)")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the first one")


def _add_bench(commands: Any) -> None:
    parser = _add(
        commands, "bench", _bench, "offer a load to an endpoint and report what clients see"
    )
    parser.epilog = bench_settings.EXAMPLES
    for entry in fields(bench_settings.BenchSettings):
        _add_setting(parser, entry.name, entry.default, entry.metadata)


def _add_fetch(commands: Any) -> None:
    parser = _add(
        commands, "fetch", _fetch, "put a model into a folder, unless it is there already"
    )
    parser.add_argument("model", metavar="HF-ID|demo", help="what to fetch")
    parser.add_argument("folder", metavar="DIR", help="where to")
    parser.add_argument("--revision", help="of the model on the hub (default: its newest)")


def _add_balancer(commands: Any) -> None:
    text = "run the load balancer alone, beside engines that run elsewhere"
    parser = _add(commands, "balancer", _balancer, text)
    for entry in fields(BalancerSettings):
        default = None if entry.default is MISSING else entry.default
        numeric = entry.type in (int, float)
        parser.add_argument(
            "--" + entry.name.replace("_", "-"),
            required=entry.default is MISSING,
            type=_number(entry.name, entry.type) if numeric else str,
            default=argparse.SUPPRESS,
            metavar="N" if numeric else "TEXT",
            help=_BALANCER_HELP[entry.name] + ("" if default is None else f" (default: {default})"),
        )
    parser.add_argument("--die-with", type=int, metavar="PID", help=argparse.SUPPRESS)


def _up(arguments: dict[str, Any]) -> int:
    settings = load(arguments, arguments.pop("config"))
    from cluster.launch import up

    return up(settings)


def _status(arguments: dict[str, Any]) -> int:
    from cluster.status import status

    return status(**arguments)


def _top(arguments: dict[str, Any]) -> int:
    from cluster.top import top

    return top(**arguments)


def _doctor(arguments: dict[str, Any]) -> int:
    from cluster.doctor import doctor

    return doctor(**arguments)


def _down(arguments: dict[str, Any]) -> int:
    from cluster.down import down

    return down(**arguments)


def _chat(arguments: dict[str, Any]) -> int:
    from cluster.chat import chat

    return chat(**arguments)


def _bench(arguments: dict[str, Any]) -> int:
    settings = bench_settings.BenchSettings(**arguments)
    from cluster.bench.run import bench

    return bench(settings)


def _fetch(arguments: dict[str, Any]) -> int:
    from cluster.fetch import fetch

    return fetch(**arguments)


def _balancer(arguments: dict[str, Any]) -> int:
    parent_pid = arguments.pop("die_with")
    if parent_pid is not None:
        die_with_parent(parent_pid)
    settings = BalancerSettings(**arguments)
    logs.configure(
        Role.BALANCER, "balancer", logs.LogSettings(settings.log_level, settings.log_format)
    )
    from cluster.balancer.serve import run_balancer

    run_balancer(settings)
    return 0
