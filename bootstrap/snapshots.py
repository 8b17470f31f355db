"""Snapshots in parts: all members of a large cluster do not fit one frame.

Pure; splits on the service's side and collects on the subscriber's.
"""

from msgspec.structs import replace

from bootstrap.codec import MAX_FRAME_BYTES
from bootstrap.identity import WorkerRef
from bootstrap.membership import AnyMember, Member, Snapshot

PART_BYTES = MAX_FRAME_BYTES // 2
MEMBER_BYTES = 64 << 10  # above what any member takes besides its connection data


def split(whole: Snapshot, part_bytes: int = PART_BYTES) -> list[Snapshot]:
    """`whole` as parts that each fit a frame, members in order; `ended` goes with the first."""
    parts: list[list[AnyMember]] = [[]]
    room_bytes = part_bytes
    for member in whole.members:
        blob = member.info.transfer.blob if isinstance(member, Member) else b""
        num_bytes = MEMBER_BYTES + len(blob)
        if parts[-1] and num_bytes > room_bytes:
            parts.append([])
            room_bytes = part_bytes
        parts[-1].append(member)
        room_bytes -= num_bytes
    return [
        replace(
            whole,
            members=tuple(members),
            part=index,
            num_parts=len(parts),
            ended=() if index else whole.ended,
        )
        for index, members in enumerate(parts)
    ]


class SnapshotParts:
    """Parts of one snapshot at a time; a part of another snapshot starts over."""

    def __init__(self) -> None:
        self._key: tuple[WorkerRef, int, int] | None = None
        self._parts: dict[int, Snapshot] = {}

    def add(self, part: Snapshot) -> Snapshot | None:
        """The whole once its last missing part is here, else None."""
        key = (part.service, part.version, part.num_parts)
        if key != self._key:
            self._key, self._parts = key, {}
        if part.part < part.num_parts:
            self._parts[part.part] = part
        if len(self._parts) < part.num_parts:
            return None
        parts = [self._parts[index] for index in sorted(self._parts)]
        self._key = None
        members = tuple(member for each in parts for member in each.members)
        return replace(parts[0], members=members, num_parts=1)
