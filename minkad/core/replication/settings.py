"""The limits and timeouts of replication."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Times are in seconds, sizes in bytes."""

    lag_timeout: float = 2.0  # a replica that has not caught up for so long is no longer in sync
    log_only_bytes: int = 256 * 1024  # a partition whose whole log has no more than this is sent without a checkpoint
    copy_log_bytes: int = 1024 * 1024 * 1024  # of log are kept for a copy, or as many as the data has if that is more
    write_pause_timeout: float = 0.5  # the longest that writes wait for the successor to catch up
    first_backoff: float = 0.05
    longest_backoff: float = 1.0
    concurrent_shipping: int = 4  # checkpoints taken and sent at a time by this node
    chunk_bytes: int = 1024 * 1024  # a message of a checkpoint; larger ones hardly save anything
