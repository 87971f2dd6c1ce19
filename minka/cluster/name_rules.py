"""What a name may be when it is looked up, of a node or a keyspace. Names that are given must be stricter, see
`minkad.core.state.names`.
"""

from typing import Final

MAX_NAME_CHARS: Final = 63


def name_problem(name: str, most: int = MAX_NAME_CHARS) -> str:
    """Why nothing can have the name, of up to `most` characters; "" if something may. Text that isn't UTF-8 is not
    printable, either.
    """
    if len(name) > most:
        return f"must have {most} characters at most, not {len(name)}"
    return "" if name.isprintable() else "must have no control characters"
