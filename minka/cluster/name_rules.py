"""The rules for names of keyspaces and nodes. New nodes have a stricter rule than nodes that are looked up."""

import re
from typing import Final

MAX_NAME_CHARS: Final = 63
_NODE_ID: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def name_problem(name: str, most: int = MAX_NAME_CHARS) -> str:
    """The reason why nothing can have this name: it has more than `most` characters, or isn't printable (for example,
    it isn't UTF-8). "" if the name is possible.
    """
    if len(name) > most:
        return f"must have {most} characters at most, not {len(name)}"
    return "" if name.isprintable() else "must have no control characters"


def node_id_problem(text: str) -> str:
    """The reason why `text` can't be a node's id or a cluster's name; "" if it can. Both occur in logs, paths and
    metrics.
    """
    if _NODE_ID.fullmatch(text):
        return ""
    return "must have 1 to 63 characters of a-z, 0-9, dot and dash, beginning with a letter or digit"


def keyspace_problem(name: str) -> str:
    """The reason why people can't create a keyspace of this name; "" if they can. The names of the cluster's own
    keyspaces begin with an underscore, so they aren't allowed here.
    """
    if _KEYSPACE.fullmatch(name):
        return ""
    return "must have 1 to 63 characters of a-z, 0-9, _ and -, beginning with a letter"
