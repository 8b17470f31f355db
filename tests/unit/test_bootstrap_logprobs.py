"""The longest list of prompt log probabilities still fits one frame."""

from bootstrap.codec import MAX_FRAME_BYTES, decode, encode
from bootstrap.fields import MAX_PROMPT_LOGPROBS
from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import Envelope, RoomTokens, TokenBatch, TokenLogprobs
from bootstrap.sampling import MAX_LOGPROBS


def test_the_most_prompt_logprobs_fit_a_frame() -> None:
    ref = WorkerRef("p0", "0" * 16)
    for num_top in (0, MAX_LOGPROBS):
        top = tuple(((1 << 31) - 1, -1.0 / 3) for _ in range(num_top))
        scored = (TokenLogprobs(-1.0 / 3, top),) * (MAX_PROMPT_LOGPROBS // (num_top + 1))
        tokens = RoomTokens(bytes(16), 0, (7,), prompt_logprobs=scored)
        envelope = Envelope(Peer(ref, "tcp://127.0.0.1:1"), ref, TokenBatch((tokens,)))
        frame = encode(envelope)
        assert len(frame) < MAX_FRAME_BYTES / 2
        assert decode(frame) == envelope
