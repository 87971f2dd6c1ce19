"""Patterns of Redis (MATCH). The lengths of pattern and text bound the time of a match, whatever a client sends.

If a pattern has a few asterisks and nothing else special, each text between asterisks is searched once. For any other
pattern, the bits of one number are the states of the match, and each byte of a text costs a few operations on this
number, as in Shift-And (Baeza-Yates and Gonnet, "A New Approach to Text Searching", 1992). Nothing is tried twice.
"""

from collections.abc import Set as AbstractSet
from typing import Final

from minkad.data_port.resp.replies import RespError

MAX_PATTERN_BYTES: Final = 1024
"""Longest pattern: with a longer pattern, one key could block the loop for long."""

_FEW_SEGMENTS: Final = 8  # texts between asterisks
_ALL: Final = frozenset(range(256))
_Token = int | AbstractSet[int]  # matches this byte, or each byte of the set


class Glob:
    """`*`, `?`, `[abc]`, `[^a-c]`, and a backslash before a literal character."""

    def __init__(self, pattern: bytes) -> None:
        """Raises RespError for a pattern that is too long."""
        if len(pattern) > MAX_PATTERN_BYTES:
            raise RespError(f"ERR pattern is too long: one has at most {MAX_PATTERN_BYTES} bytes")
        segments = _segments(pattern)
        self._literals: list[bytes] | None = None
        if len(segments) <= _FEW_SEGMENTS and all(isinstance(token, int) for segment in segments for token in segment):
            self._literals = [bytes([token for token in one if isinstance(token, int)]) for one in segments]
        else:
            self._prepare(segments)

    @property
    def is_quick(self) -> bool:
        """True if a match takes almost no time."""
        return self._literals is not None

    def matches(self, text: bytes) -> bool:
        """True if the whole text matches the pattern."""
        return self._finds(self._literals, text) if self._literals is not None else self._steps(text)

    @staticmethod
    def _finds(literals: list[bytes], text: bytes) -> bool:
        first, *others = literals
        if not others:
            return text == first
        last = others.pop()
        end = len(text) - len(last)
        if not (text.startswith(first) and text.endswith(last) and len(first) <= end):
            return False
        at = len(first)
        for literal in others:  # at the first place: this leaves the most room for the rest
            at = text.find(literal, at, end)
            if at < 0:
                return False
            at += len(literal)
        return True

    def _prepare(self, segments: list[list[_Token]]) -> None:
        """Bit n of a state: the text so far matches the first n tokens."""
        count, stays, anywhere = 0, 0, 0
        takes, refuses = [0] * 256, [0] * 256
        for number, segment in enumerate(segments):
            if number:
                stays |= 1 << count  # after an asterisk
            for token in segment:
                bit = 1 << count
                count += 1
                if isinstance(token, int):
                    takes[token] |= bit
                elif len(token) <= 128:
                    for byte in token:
                        takes[byte] |= bit
                else:
                    anywhere |= bit
                    for byte in _ALL - token:
                        refuses[byte] |= bit
        self._takes = [anywhere & ~no | yes for yes, no in zip(takes, refuses, strict=True)]
        self._stays = stays
        self._count = count

    def _steps(self, text: bytes) -> bool:
        takes, stays, state = self._takes, self._stays, 1
        for byte in text:
            state = (state & takes[byte]) << 1 | state & stays
            if not state:
                return False
        return bool(state >> self._count & 1)


def _segments(pattern: bytes) -> list[list[_Token]]:
    """The tokens between the asterisks."""
    segments: list[list[_Token]] = [[]]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == ord("*"):
            segments.append([])
        elif character == ord("?"):
            segments[-1].append(_ALL)
        elif character == ord("["):
            members, at = _class(pattern, at)
            segments[-1].append(members)
        else:
            if character == ord("\\") and at < len(pattern):
                character = pattern[at]
                at += 1
            segments[-1].append(character)
    return segments


def _class(pattern: bytes, at: int) -> tuple[AbstractSet[int], int]:
    """The characters in brackets, and the place after them. An unclosed bracket ends with the pattern."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(pattern) and pattern[at] != ord("]"):
        if pattern[at] == ord("\\") and at + 1 < len(pattern):
            members.add(pattern[at + 1])
            at += 2
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            first, last = sorted((pattern[at], pattern[at + 2]))
            members.update(range(first, last + 1))
            at += 3
        else:
            members.add(pattern[at])
            at += 1
    return (_ALL - members if negated else members), at + 1
