"""An administrator's commands to engines, through a balancer, and their one answer; see `messages`."""

from typing import Annotated, Literal

from msgspec import Meta

from bootstrap.fields import Gauge, MessageBase, Text

LogLevel = Literal["debug", "info", "warning", "error"]
CommandId = Annotated[bytes, Meta(min_length=16, max_length=16)]


class FlushCache(MessageBase, frozen=True):
    """Forget every cached block. Refused while a room is here or any page is live."""

    command: CommandId


class SetLogLevel(MessageBase, frozen=True):
    """Log from `level` on, a name of the `logging` module's in lower case."""

    command: CommandId
    level: LogLevel


class PrepareWeights(MessageBase, frozen=True):
    """Load the weights of `model_dir` beside those in use, and then take no new room.

    The answer comes when they are loaded; it holds the digest of the model that they make.
    """

    command: CommandId
    model_dir: Text


class CommitWeights(MessageBase, frozen=True):
    """Compute with what the command `prepared` loaded. Rooms that are here end."""

    command: CommandId
    prepared: CommandId


class DiscardWeights(MessageBase, frozen=True):
    """Forget what the command `prepared` loaded, if anything, and go on as before."""

    command: CommandId
    prepared: CommandId


class CommandAnswered(MessageBase, frozen=True):
    """`command` was carried out, unless `refusal` says why it was not."""

    command: CommandId
    refusal: Text = ""
    num_blocks: Gauge = 0
    model_digest: Text = ""
