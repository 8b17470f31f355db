"""One engine as a process of its own, without Ray: `python -m tests.support.engine_process ROLE JSON`."""

import json
import logging
import signal
import sys

from decode.worker import DecodeWorker
from engine.settings import EngineSettings
from prefill.worker import PrefillWorker


def main() -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    role, settings = sys.argv[1], EngineSettings(**json.loads(sys.argv[2]))
    worker = PrefillWorker(settings) if role == "prefill" else DecodeWorker(settings)
    worker.start()
    signal.signal(signal.SIGTERM, lambda *_: worker.request_stop())
    worker.wait()
    worker.stop()


if __name__ == "__main__":
    main()
