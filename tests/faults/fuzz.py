"""Fuzzing of everything that decodes bytes from a peer: `python -m tests.faults.fuzz --inputs 1000000`.

Each input is a valid frame of a random message that was spoiled, or bytes that never were one. Whatever
comes, a decoder answers with a message or with its one typed error, in memory that its input's size
bounds. Messages that are well formed go on to those who take them in from strangers.
"""

import argparse
import random
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bootstrap import codec, sockets
from bootstrap.counts import Counts
from bootstrap.directory import Directory
from bootstrap.errors import TransferError, WireError
from bootstrap.identity import WorkerRef
from bootstrap.inbox import INBOX_COUNTS, Inbox
from bootstrap.membership import (
    Evict,
    Heartbeat,
    Register,
    Snapshot,
    Subscribe,
    TransferMetadata,
    Unregister,
)
from bootstrap.messages import Envelope
from bootstrap.registry import Registry
from bootstrap.snapshots import SnapshotParts
from kv_transfer.backends.process import pack_blob, unpack_blob
from tests.faults.random_messages import RandomMessages, message_types

FRAMES_PER_TYPE = 40
SAMPLE_EVERY = 500  # inputs whose memory is looked at
BYTES_PER_BYTE = 200  # the most that a decoded object may take of what it was decoded from
FIXED_BYTES = 1 << 16
GROWTH_BYTES = 64 << 20  # of the whole process, over a whole run


@dataclass(slots=True)
class FuzzReport:
    """What a run came to."""

    num_inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # by decoder and verdict
    largest_ratio: float = 0.0  # bytes taken at the peak, per byte decoded
    growth_bytes: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """For people."""
        verdicts = ", ".join(f"{what} {n}" for what, n in sorted(self.outcomes.items()))
        return [
            f"{self.num_inputs} inputs in {self.seconds:.0f} s: {verdicts}",
            f"at most {self.largest_ratio:.1f} bytes taken for each byte decoded;"
            f" the process grew by {self.growth_bytes / (1 << 20):.1f} MiB",
        ]


class Mutator:
    """Spoils frames of a corpus; one seed, one sequence."""

    def __init__(self, dice: random.Random, corpus: list[bytes]) -> None:
        self._dice, self._corpus = dice, corpus
        self._spoilers = (
            self._flip,
            self._cut,
            self._insert,
            self._overwrite,
            self._splice,
            self._inflate,
            self._nest,
            self._repeat,
        )

    def next(self) -> bytes:
        """A frame with one to four things wrong, or nothing but noise."""
        dice = self._dice
        if dice.random() < 0.1:
            noise = dice.randbytes(dice.randrange(0, 300))
            return noise if dice.random() < 0.5 else bytes([codec.WIRE_VERSION]) + noise
        frame = dice.choice(self._corpus)
        for _ in range(dice.choice((0, 1, 1, 1, 2, 4))):
            frame = dice.choice(self._spoilers)(frame)
        return frame

    def _at(self, frame: bytes) -> int:
        return self._dice.randrange(len(frame) + 1)

    def _flip(self, frame: bytes) -> bytes:
        if not frame:
            return b"\1"
        at = self._dice.randrange(len(frame))
        return frame[:at] + bytes([frame[at] ^ 1 << self._dice.randrange(8)]) + frame[at + 1 :]

    def _cut(self, frame: bytes) -> bytes:
        return frame[: self._at(frame)]

    def _insert(self, frame: bytes) -> bytes:
        at = self._at(frame)
        return frame[:at] + self._dice.randbytes(self._dice.randrange(1, 9)) + frame[at:]

    def _overwrite(self, frame: bytes) -> bytes:
        at = self._at(frame)
        junk = self._dice.randbytes(self._dice.randrange(1, 9))
        return frame[:at] + junk + frame[at + len(junk) :]

    def _splice(self, frame: bytes) -> bytes:
        other = self._dice.choice(self._corpus)
        return frame[: self._at(frame)] + other[self._at(other) :]

    def _inflate(self, frame: bytes) -> bytes:
        """A header that promises far more than there is (MessagePack: bin, str, array, map)."""
        header = self._dice.choice((b"\xc6", b"\xdb", b"\xdd", b"\xdf"))
        size = self._dice.choice((b"\xff\xff\xff\xff", b"\x00\x10\x00\x00", b"\x7f\xff\xff\xff"))
        at = self._at(frame)
        return frame[:at] + header + size + frame[at + 1 :]

    def _nest(self, frame: bytes) -> bytes:
        """Arrays or maps in one another, deeper than any stack."""
        at = self._at(frame)
        opening = self._dice.choice((b"\x91", b"\x81\xa1x", b"\x81\xa1t", b"\x93\x01\x02"))
        return frame[:at] + opening * self._dice.choice((3, 100, 5000)) + frame[at:]

    def _repeat(self, frame: bytes) -> bytes:
        at = self._at(frame)
        part = frame[at : at + self._dice.randrange(1, 40)]
        return frame[:at] + part * self._dice.randrange(2, 30) + frame[at:]


class Targets:
    """Every decoder, and those whom a well-formed message may reach."""

    def __init__(self) -> None:
        self._context = sockets.new_context()
        self._inbox = Inbox(self._context, "127.0.0.1", None, Counts(INBOX_COUNTS))
        self._connection = 0
        self._fresh()

    def close(self) -> None:
        """Give sockets back."""
        self._inbox.close()
        self._context.term()

    def _fresh(self) -> None:
        service = WorkerRef("bootstrap", "0" * 16)
        self._registry = Registry(service, 2.5)
        self._directory = Directory()
        self._parts = SnapshotParts()
        self._now = 0.0

    def codec(self, frame: bytes) -> str:
        """`bootstrap.codec`, and that what it accepts survives another trip."""
        try:
            envelope = codec.decode(frame)
        except WireError:
            return "refused"
        again = codec.encode(envelope)
        assert codec.encode(codec.decode(again)) == again, "changed by another trip"
        self._take_in(envelope)
        return "accepted"

    def inbox(self, frame: bytes) -> str:
        """A socket's parts: two of them, or too few, or too many."""
        self._connection += 1
        cut, sender = len(frame) // 3, b"%d" % (self._connection // 10)
        parts = [sender, frame] if len(frame) % 4 else [sender, frame[:cut], frame[cut:]]
        return "refused" if self._inbox._decode(parts) is None else "accepted"

    def blob(self, frame: bytes) -> str:
        """A transport's connection data, inside a registration."""
        metadata = TransferMetadata("nixl", "shm", "a", 0, 1, frame)
        try:
            unpack_blob(metadata, "nixl")
        except TransferError:
            return "refused"
        return "accepted"

    def _take_in(self, envelope: Envelope) -> None:
        """What the service, and its clients, do with a stranger's message."""
        sender, body = envelope.sender.ref, envelope.body
        self._now += 0.01
        if isinstance(body, Register):
            self._registry.register(body, self._now)
        elif isinstance(body, Heartbeat):
            self._registry.heartbeat(sender, body.load, self._now)
        elif isinstance(body, Subscribe):
            self._registry.subscribe(sender, body, self._now)
        elif isinstance(body, Unregister):
            self._registry.unregister(sender)
        elif isinstance(body, Evict):
            self._registry.evict(body.ref)
        elif isinstance(body, Snapshot):
            self._parts.add(body)
        self._directory.apply(sender, body, self._now)
        self._directory.tick(self._now)
        if self._now > 50:  # as long as a few leases; a fuzzer's members are no leak
            self._registry.tick(self._now)
            self._registry.validate()
            self._directory.validate()
            self._fresh()


def frames_of(dice: random.Random) -> list[bytes]:
    """Valid frames of every message type."""
    messages = RandomMessages(dice)
    return [messages.frame(kind) for kind in message_types() for _ in range(FRAMES_PER_TYPE)]


def blobs_of(dice: random.Random) -> list[bytes]:
    """Valid connection data."""
    return [pack_blob(dice.randbytes(dice.randrange(200))) for _ in range(FRAMES_PER_TYPE)]


def fuzz(seed: int, num_inputs: int) -> FuzzReport:
    """Run; raises at the first input that a decoder does not judge, naming it."""
    report, targets = FuzzReport(num_inputs), Targets()
    began, rss = time.monotonic(), _rss_bytes()
    try:
        _feed(targets, seed, report)
    finally:
        targets.close()
    report.seconds, report.growth_bytes = time.monotonic() - began, _rss_bytes() - rss
    assert report.growth_bytes < GROWTH_BYTES, report
    return report


def _feed(targets: Targets, seed: int, report: FuzzReport) -> None:
    dice = random.Random(seed)
    frames, blobs = Mutator(dice, frames_of(dice)), Mutator(dice, blobs_of(dice))
    codec_too = ("codec", targets.codec, frames)
    choices = (
        codec_too,
        codec_too,
        ("inbox", targets.inbox, frames),
        ("blob", targets.blob, blobs),
    )
    for index in range(report.num_inputs):
        name, decode, mutator = dice.choice(choices)
        frame = mutator.next()
        try:
            verdict = decode(frame) if index % SAMPLE_EVERY else _weighed(decode, frame, report)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}, input {index}: {frame[:200]!r}") from error
        report.outcomes[f"{name} {verdict}"] += 1


def _weighed(decode: Callable[[bytes], str], frame: bytes, report: FuzzReport) -> str:
    tracemalloc.start()
    try:
        verdict = decode(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= BYTES_PER_BYTE * len(frame) + FIXED_BYTES, f"{peak} bytes for {len(frame)}"
    if len(frame) > 1000:
        report.largest_ratio = max(report.largest_ratio, peak / len(frame))
    return verdict


def _rss_bytes() -> int:
    """The most this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    report = fuzz(options.seed, options.inputs)
    print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
