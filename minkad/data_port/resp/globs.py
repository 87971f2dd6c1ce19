"""Patterns of Redis (MATCH) as regular expressions."""

import re


def compiled(pattern: bytes) -> re.Pattern[bytes]:
    """`*`, `?`, `[abc]`, `[^a-c]`, and a backslash before a character that is meant as it is."""
    segments: list[list[bytes]] = [[]]  # what is between asterisks
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == ord("*"):
            segments.append([])
        elif character == ord("?"):
            segments[-1].append(rb".")
        elif character == ord("["):
            part, at = _class(pattern, at)
            segments[-1].append(part)
        else:
            if character == ord("\\") and at < len(pattern):
                character = pattern[at]
                at += 1
            segments[-1].append(re.escape(bytes([character])))
    first, *others = [b"".join(segment) for segment in segments]
    if not others:
        return re.compile(first, re.DOTALL)
    # What comes after an asterisk is taken where it first fits, once and for all: so a match costs no more than the
    # product of both lengths.
    middle = b"".join([rb"(?>.*?" + segment + rb")" for segment in others[:-1] if segment])
    return re.compile(first + middle + rb".*" + others[-1], re.DOTALL)


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The characters in brackets, and where the pattern goes on. One that isn't closed ends with the pattern."""
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
    if not members:
        return (rb"." if negated else rb"(?!)"), at + 1
    inside = b"".join(re.escape(bytes([member])) for member in sorted(members))
    return b"[" + (b"^" if negated else b"") + inside + b"]", at + 1
