"""What is left to do when `up` is killed outright, done by a child that outlives it.

Most processes end with `up` by themselves. Ray's two agents do not: once their raylet is gone they
wait for a control service that never comes back. And nobody removes the files. Run as
`python -m cluster.guard FOLDER`; it imports little and sleeps until then.
"""

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from cluster.processes import kill
from kv_transfer.backends.process import start_time

_GRACE_S = 1.0  # for those that end by themselves
_REMOVE_TRIES = 20
_REMOVE_PAUSE_S = 0.1

log = logging.getLogger(__name__)


class Guard:
    """`up`'s end of the pipe. The child acts when the pipe closes without it having been ended."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cluster.guard", str(folder)],
            stdin=subprocess.PIPE,
            bufsize=0,  # a line that cannot be written is not tried again at the end
            start_new_session=True,  # not ended by what ends `up`'s terminal
        )

    def watch(self, pids: Iterable[int]) -> None:
        """Have these processes ended too, if they still live when `up` does not.

        The cluster serves without its guard too: a dead one is told of and no more.
        """
        assert self._process.stdin is not None
        try:
            for pid in pids:
                started = start_time(pid)
                if started is not None and pid != self._process.pid:
                    self._process.stdin.write(f"{pid} {started}\n".encode())
        except BrokenPipeError:
            log.warning(
                "the guard (pid %d) ended: if this process is killed, Ray's agents and the files in"
                " its folder stay",
                self._process.pid,
            )


def main() -> None:
    """Read processes to watch until the pipe closes, then end them and remove the folder."""
    folder = Path(sys.argv[1])
    watched = {tuple(map(int, line.split())) for line in sys.stdin}
    time.sleep(_GRACE_S)
    for pid, started in watched:
        kill(pid, started)
    for _ in range(_REMOVE_TRIES):  # the last of them may still be writing
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_REMOVE_PAUSE_S)


if __name__ == "__main__":
    main()
