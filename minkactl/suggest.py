"""The names that somebody who mistyped one may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """The end of a sentence with names that are similar: "; did you mean athens?"; "" if none is."""
    near = get_close_matches(typed, list(known), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
