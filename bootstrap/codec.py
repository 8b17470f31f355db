"""Frames to messages and back: one version byte, then MessagePack. Never pickle.

Every field is bounded by its type, so decoding is the whole validation; what does not decode raises
`WireError` and costs its sender one counted drop.
"""

import msgspec

from bootstrap.errors import WireError
from bootstrap.messages import Envelope

WIRE_VERSION = 1
MAX_FRAME_BYTES = 16 << 20

_VERSION_PREFIX = bytes([WIRE_VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """One frame. Bounds are the decoder's to check: a sender of ours stays within them."""
    return _VERSION_PREFIX + _encoder.encode(envelope)


def decode(frame: bytes | memoryview) -> Envelope:
    """The envelope in `frame`; raises WireError for anything that is not one of ours."""
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"frame of {len(frame)} bytes exceeds {MAX_FRAME_BYTES}")
    if len(frame) < 2 or frame[0] != WIRE_VERSION:
        version = frame[0] if len(frame) else "none"
        raise WireError(f"wire version {version}, expected {WIRE_VERSION}")
    try:
        return _decoder.decode(memoryview(frame)[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"undecodable frame: {error}") from error
