"""The rules for names of keyspaces, and for names of nodes that are looked up. The rule for new nodes is stricter, see
`minkad.core.state.names`.
"""

import re
from typing import Final

MAX_NAME_CHARS: Final = 63
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def name_problem(name: str, most: int = MAX_NAME_CHARS) -> str:
    """The reason why nothing can have the name (up to `most` characters); "" if something can. Text that isn't UTF-8 is
    not printable, either.
    """
    if len(name) > most:
        return f"must have {most} characters at most, not {len(name)}"
    return "" if name.isprintable() else "must have no control characters"


def keyspace_problem(name: str) -> str:
    """The reason why no keyspace that people create can have the name; "" if one can. The cluster's own begin with an
    underscore.
    """
    if _KEYSPACE.fullmatch(name):
        return ""
    return "must be 1 to 63 of a-z, 0-9, _ and -, beginning with a letter"
