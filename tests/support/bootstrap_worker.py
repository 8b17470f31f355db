"""A process that is only a member: it registers, heartbeats, and computes without a pause.

python -m tests.support.bootstrap_worker SERVICE_ENDPOINT WORKER_ID
"""

import sys

from bootstrap.client import BootstrapClient, Registration
from bootstrap.identity import Role, WorkerRef, new_incarnation
from bootstrap.mailbox import Mailbox
from bootstrap.membership import WorkerLoad
from tests.support.bootstrap_facts import make_info


def main(service_endpoint: str, worker_id: str) -> None:
    """Keep the interpreter busy until killed, as an engine's long step does."""
    me = WorkerRef(worker_id, new_incarnation())
    mailbox = Mailbox(me, "127.0.0.1", lambda sender, message: None)
    mailbox.start()
    registration = Registration(make_info(mailbox.peer, Role.DECODE), WorkerLoad)
    client = BootstrapClient(service_endpoint, mailbox.peer, None, lambda event: None, registration)
    client.start()
    print("started", flush=True)
    while True:
        sum(range(100_000))


if __name__ == "__main__":
    main(*sys.argv[1:])
