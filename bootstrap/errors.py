"""Every error pdserve raises on purpose.

    PdserveError
    ├── ConfigError            a setting is wrong; names the key, the value and what is allowed
    ├── LocalMisuse            our own code broke a rule (a bug here)
    │   ├── IllegalTransition      a state machine was asked for a move its table lacks
    │   └── LedgerError            a page operation that its present state forbids
    └── RemoteFault            what a peer, a client or the network did
        ├── WireError              bytes that are no message of ours
        ├── TransferError          a transport refused, failed or lost a write
        └── BootstrapUnreachable   the bootstrap service does not answer

A remote fault ends at most one room; it never takes an engine down.
"""


class PdserveError(Exception):
    """Root of the tree."""


class ConfigError(PdserveError):
    """A setting that cannot work. The message names the key, its value and the allowed values."""


class LocalMisuse(PdserveError):
    """A rule of our own that our own code broke."""


class IllegalTransition(LocalMisuse):
    """A move that is not in a state machine's table. The message tells the request's story."""


class LedgerError(LocalMisuse):
    """A page operation that the page's present state forbids."""


class RemoteFault(PdserveError):
    """A fault that came from outside this process."""


class WireError(RemoteFault):
    """A frame that does not decode to a message within its bounds."""


class TransferError(RemoteFault):
    """A transport refused, failed or lost a write."""


class BootstrapUnreachable(RemoteFault):
    """The bootstrap service did not answer in time."""
