"""What the fields of messages may hold: every one is bounded by its type."""

from typing import Annotated

from msgspec import Meta, Struct

MAX_BLOCKS = 1 << 17
MAX_ROOMS = 1 << 14
MAX_DRAFT_TOKENS = 64
MAX_SECONDS = 1e6
MAX_PROMPT_LOGPROBS = 1 << 18  # log probabilities and alternatives of one prompt, to fit a frame

Seconds = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Position = Annotated[int, Meta(ge=0, le=1 << 20)]
Epoch = Annotated[int, Meta(ge=1, lt=1 << 53)]
Gauge = Annotated[int, Meta(ge=0, lt=1 << 53)]
BlockIndex = Annotated[int, Meta(ge=0, lt=MAX_BLOCKS)]
Page = Annotated[int, Meta(ge=0, lt=1 << 31)]
Pages = Annotated[tuple[Page, ...], Meta(max_length=MAX_BLOCKS)]
BlockDigests = Annotated[bytes, Meta(max_length=8 * MAX_BLOCKS)]
RequestId = Annotated[str, Meta(max_length=128)]
Text = Annotated[str, Meta(max_length=1024)]
PromptDigest = Annotated[bytes, Meta(min_length=16, max_length=16)]


class MessageBase(Struct, frozen=True, omit_defaults=True, tag=True, tag_field="t"):
    """Base of all messages; the tag is the class name."""
