"""The form of endpoints: the addresses of nodes, as people give them."""

import re
from typing import Final

DEFAULT_ENDPOINT: Final = "127.0.0.1:7400"
_ENDPOINT: Final = re.compile(r"[^\s/?#@,;]+:([0-9]{1,5})", re.ASCII)


def endpoint_problem(text: str) -> str:
    """The reason why the text isn't the address of a node; "" if it is."""
    if "//" in text:
        return f"isn't host:port: leave {text.partition('//')[0]}// out"
    found = _ENDPOINT.fullmatch(text) if text.isprintable() else None
    return "" if found and 0 < int(found[1]) < 65536 else "isn't host:port"
