"""What somebody who mistyped a name may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """How a sentence goes on, with what is near: "; did you mean athens?"; with nothing if nothing is near."""
    near = get_close_matches(typed, list(known), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
