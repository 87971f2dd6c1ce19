"""Checks callers' arguments about pallets, duties and shards before anything is sent. A function returns the argument
if it is valid; else it raises MinkaError(INVALID_ARGUMENT), which says what was given and what is allowed.
"""

from typing import Any

from minka.duties.limits import MAX_PAYLOAD_BYTES, MAX_WEIGHT
from minka.duties.names import id_problem, pallet_problem
from minka.engine.arguments import checked_text, invalid, utf8, whole_number
from minka.engine.grpc_calls import clipped
from minka.errors import Code, MinkaError


def checked_pallet(name: Any) -> str:
    """Check the name of a pallet."""
    return _filled(checked_text(name, "the name of a pallet", pallet_problem), "the name of a pallet")


def checked_id(id_: Any) -> str:
    """Check the id of a duty."""
    return checked_label(id_, "the id of a duty")


def checked_shard(name: Any) -> str:
    """Check the name of a shard."""
    return checked_label(name, "the name of a shard")


def checked_label(text: Any, what: str) -> str:
    """Check a text that obeys the rules for names of shards; `what` names the text in the error."""
    return _filled(checked_text(text, what, id_problem), what)


def checked_weight(weight: Any) -> int:
    """Check the weight of a duty."""
    number = whole_number(weight)
    if number is None or not 0 <= number <= MAX_WEIGHT:
        raise invalid(f"weight={clipped(repr(weight))} isn't a whole number from 0 to {MAX_WEIGHT:,}")
    return number


def checked_version(version: Any) -> int:
    """Check an `if_version`, and return the number for the request. For None this is 0, which means any version."""
    if version is None:
        return 0
    number = whole_number(version)
    if number is None or not 0 <= number < 1 << 63:
        raise invalid(f"if_version={clipped(repr(version))} isn't a version: a whole number from 1 on, or None")
    if number == 0:
        raise invalid(
            "if_version=0 can never hold: the versions of duties and pallets begin at 1 (None, or no if_version, means "
            "any version)"
        )
    return number


def checked_payload(payload: Any) -> bytes:
    """Check the payload of a duty, and return it as bytes; a str stands for its UTF-8 form.

    Raises INVALID_ARGUMENT, or TOO_LARGE.
    """
    if isinstance(payload, str):
        payload = utf8(payload, "the payload")
    if type(payload) is not bytes:
        raise invalid(f"a payload is {type(payload).__name__}, not bytes or str")
    check_size("a payload", len(payload), MAX_PAYLOAD_BYTES, "bytes")
    return payload


def check_size(what: str, size: int, most: int, unit: str) -> None:
    """Raise TOO_LARGE if `size` is over the limit `most`."""
    if size > most:
        raise MinkaError(Code.TOO_LARGE, f"{what} has {size:,} {unit}; {most:,} is the limit")


def _filled(name: str, what: str) -> str:
    if not name:
        raise invalid(f"{what} must not be empty")
    return name
