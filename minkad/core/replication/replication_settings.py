"""The limits and timeouts of replication."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Times are in seconds, sizes in bytes."""

    lag_timeout: float = 2.0  # a replica that has lagged for longer than this leaves the in-sync set
    log_only_bytes: int = 256 * 1024  # a new replica gets a whole log of at most this size instead of a checkpoint
    copy_log_bytes: int = 1024 * 1024 * 1024  # of log kept for a copy; the size of the data if that is more
    write_pause_timeout: float = 0.5  # writes wait at most this long for the successor, or the merge, to catch up
    first_backoff: float = 0.05  # the pause after a first failure; each later pause is twice as long
    longest_backoff: float = 1.0
    concurrent_shipping: int = 4  # checkpoints that this node takes and sends at a time
    chunk_bytes: int = 1024 * 1024  # a message of a checkpoint; larger messages hardly save anything
