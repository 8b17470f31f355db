"""What every message is: a frozen struct, its class's name as its tag, and bounded fields."""

from typing import Annotated

from msgspec import Meta, Struct

Gauge = Annotated[int, Meta(ge=0, lt=1 << 53)]
Text = Annotated[str, Meta(max_length=1024)]


class Tagged(Struct, frozen=True, omit_defaults=True, tag=True, tag_field="t"):
    """Base of all messages; the tag is the class name."""
