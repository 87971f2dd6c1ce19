"""Which keys of a call failed, at which node, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from minka._grpc import clipped
from minka.errors import Code, MinkaError

_MAX_SHOWN: Final = 4
_MAX_KEY_CHARS: Final = 40

# Of several codes in one batch, the one that asks most of the reader comes first.
_GRAVEST: Final = (
    Code.OUTCOME_UNKNOWN,
    Code.DEADLINE_EXCEEDED,
    Code.CORRUPT_DATA,
    Code.STORAGE_FAILED,
    Code.INTERNAL,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Keys that failed together."""

    keys: tuple[bytes, ...]
    node: str  # "" when no node was asked
    address: str
    error: MinkaError

    def where(self) -> str:
        """The node and its address, for people."""
        if self.node and self.address:
            return f"{self.node} ({self.address})"
        return self.node or self.address or "no node"


class BatchError(MinkaError):
    """A batch of which some keys failed; the others were done. `code` is the gravest of the failures' codes."""

    def __init__(self, failures: Sequence[Failure], key_count: int) -> None:
        codes = [failure.error.code for failure in failures]
        code = next((code for code in _GRAVEST if code in codes), codes[0])
        failed = sum(len(failure.keys) for failure in failures)
        shown = [
            f"{len(failure.keys)} at {failure.where()}: {failure.error.code.name}: {clipped(failure.error.message)}"
            f" (first key: {shown_key(failure.keys[0])})"
            for failure in failures[:_MAX_SHOWN]
        ]
        if len(failures) > _MAX_SHOWN:
            shown.append(f"{len(failures) - _MAX_SHOWN} more like these in `failures`")
        super().__init__(code, f"{failed} of {key_count} keys failed: {'; '.join(shown)}")
        self.failures: Final = tuple(failures)


def error_of_one(failure: Failure) -> MinkaError:
    """The error of a call with a single key, or of a scan."""
    details = {**failure.error.details, "node": failure.node, "address": failure.address}
    what = f"key {shown_key(failure.keys[0])}" if failure.keys else "scan"
    message = f"{what} at {failure.where()}: {failure.error.message}"
    return MinkaError(failure.error.code, message, partitions=failure.error.partitions, **details)


def shown_key(key: bytes) -> str:
    """A key for people, shortened."""
    text = repr(key[:_MAX_KEY_CHARS])
    return text if len(key) <= _MAX_KEY_CHARS else f"{text}… ({len(key)} bytes)"
