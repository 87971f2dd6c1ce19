"""The errors of calls. They say which keys failed, at which node, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from minka.cluster.key_ranges import readable
from minka.engine.grpc_calls import clipped
from minka.errors import Code, MinkaError, kind_of, newer_rows, with_rows

_MAX_SHOWN: Final = 4
_MAX_KEY_CHARS: Final = 40

# The gravest code first. If keys of a batch failed with several codes, the gravest of them is the error's code.
_GRAVEST: Final = (
    Code.OUTCOME_UNKNOWN,
    Code.DEADLINE_EXCEEDED,
    Code.CORRUPT_DATA,
    Code.STORAGE_FAILED,
    Code.INTERNAL,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Keys of a batch that failed at one node with one error."""

    keys: tuple[bytes, ...]
    node: str  # "": no node was asked
    address: str  # host:port; "": no node was asked
    error: MinkaError

    def where(self) -> str:
        """The node and its address, for people."""
        if self.node and self.address:
            return f"{self.node} ({self.address})"
        return self.node or self.address or "no node"


class BatchError(MinkaError):
    """Some keys of a batch failed; the others were done. `code` is the gravest code of the failures, in this order:
    OUTCOME_UNKNOWN, DEADLINE_EXCEEDED, CORRUPT_DATA, STORAGE_FAILED, INTERNAL. If no failure has one of these codes,
    `code` is the code of the first failure that can't be retried, or of the first failure if all can be retried.

    A BatchError is also an instance of its code's class: `except minka.Unavailable` catches it if all failed keys may
    succeed in a moment.
    """

    failures: Final[tuple[Failure, ...]]  # one for each set of keys that failed together

    def __new__(cls, failures: Sequence[Failure], key_count: int) -> Self:
        """An instance of the class for the gravest code."""
        kind: type[Any] = _of_kind(kind_of(_gravest(failures)))
        return super().__new__(kind, _gravest(failures))  # type: ignore[no-any-return]  # a subclass of this one

    def __init__(self, failures: Sequence[Failure], key_count: int) -> None:
        code = _gravest(failures)
        failed = sum(len(failure.keys) for failure in failures)
        shown = [
            f"{len(failure.keys)} at {failure.where()}: {failure.error.code.name}: {clipped(failure.error.message)}"
            f" (first key: {shown_key(failure.keys[0])})"
            for failure in failures[:_MAX_SHOWN]
        ]
        if len(failures) > _MAX_SHOWN:
            shown.append(f"{len(failures) - _MAX_SHOWN} more like these in `failures`")
        remedy = next(one.error.remedy for one in failures if one.error.code is code)
        own = {} if remedy == code.info.remedy else {"remedy": remedy}
        super().__init__(code, f"{failed} of {key_count} keys failed: {'; '.join(shown)}", **own)
        self.failures = tuple(failures)
        self._key_count: Final = key_count

    def __reduce__(self) -> tuple[Any, ...]:
        """The error is pickled with its failures."""
        return BatchError, (self.failures, self._key_count)


def _gravest(failures: Sequence[Failure]) -> Code:
    """The first code of `_GRAVEST` that is among the failures' codes; if they have none of these, the first code that
    can't be retried; if all codes can be retried, the first failure's code.
    """
    codes = [failure.error.code for failure in failures]
    lasting = (code for code in codes if not code.info.retriable)
    return next((code for code in _GRAVEST if code in codes), next(lasting, codes[0]))


_OF_KIND: Final[dict[type[MinkaError], type[BatchError]]] = {}


def _of_kind(kind: type[MinkaError]) -> type[BatchError]:
    """The class that inherits from BatchError and from this kind of error. It is made once for each kind."""
    if kind not in _OF_KIND:
        _OF_KIND[kind] = type("BatchError", (BatchError, kind), {"__module__": __name__, "__doc__": BatchError.__doc__})
    return _OF_KIND[kind]


def error_of_one(failure: Failure) -> MinkaError:
    """The error of a call with a single key, or of a scan."""
    place = {"node": failure.node, "address": failure.address}
    details = failure.error.details | {name: text for name, text in place.items() if text}
    what = f"key {shown_key(failure.keys[0])}" if failure.keys else "scan"
    message = f"{what} at {failure.where()}: {failure.error.message}"
    return with_rows(MinkaError(failure.error.code, message, **details), newer_rows(failure.error))


def shown_key(key: bytes) -> str:
    """A key for people, shortened."""
    text = readable(key)
    return text if len(text) <= _MAX_KEY_CHARS else f"{text[:_MAX_KEY_CHARS]}… ({len(key)} bytes)"
