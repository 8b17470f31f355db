"""`python -m bootstrap`: the bootstrap service alone, until SIGINT or SIGTERM."""

import argparse
import logging
import signal
import sys
import threading

from bootstrap.errors import ConfigError
from bootstrap.security import Security
from bootstrap.service import BootstrapService
from bootstrap.session import DEFAULT_LEASE_S


def main() -> None:
    """Serve; the endpoint is the one line on standard output."""
    parser = argparse.ArgumentParser(prog="python -m bootstrap", description=__doc__)
    parser.add_argument("--bind", default="tcp://127.0.0.1:7550", help="tcp://host:port")
    parser.add_argument("--lease", type=float, default=DEFAULT_LEASE_S, help="seconds")
    parser.add_argument("--secret-file", help="the cluster secret; needed beyond loopback")
    options = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        security = Security.from_file(options.secret_file) if options.secret_file else None
        service = BootstrapService(options.bind, options.lease, security)
        service.start()
    except ConfigError as error:
        sys.exit(str(error))
    print(service.endpoint, flush=True)
    stop.wait()
    service.stop()


if __name__ == "__main__":
    main()
