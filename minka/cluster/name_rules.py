"""The rules for names of nodes and keyspaces that are looked up. The rules for new names are stricter, see
`minkad.core.state.names`.
"""

from typing import Final

MAX_NAME_CHARS: Final = 63


def name_problem(name: str, most: int = MAX_NAME_CHARS) -> str:
    """The reason why nothing can have the name (up to `most` characters); "" if something can. Text that isn't UTF-8 is
    not printable, either.
    """
    if len(name) > most:
        return f"must have {most} characters at most, not {len(name)}"
    return "" if name.isprintable() else "must have no control characters"
