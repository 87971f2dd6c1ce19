"""What commands do with their keys, as COMMAND GETKEYSANDFLAGS reports it: RO, RW, OW (overwrites) or RM, and
others.
"""

from collections.abc import Sequence
from typing import Final

from minkad.data_port.resp.command import upper

_COMMANDS: Final = {
    ("RO",): "STRLEN EXISTS TOUCH TYPE",
    ("RO", "access"): "GET MGET GETRANGE SUBSTR TTL PTTL EXPIRETIME PEXPIRETIME",
    ("RW", "access", "update"): "GETSET GETEX INCR INCRBY DECR DECRBY INCRBYFLOAT",
    ("RW", "access", "delete"): "GETDEL",
    ("RW", "insert"): "APPEND",
    ("RW", "update"): "SETRANGE EXPIRE PEXPIRE EXPIREAT PEXPIREAT PERSIST",
    ("OW", "update"): "SET SETEX PSETEX MSET",
    ("OW", "insert"): "SETNX MSETNX",
    ("RM", "delete"): "DEL UNLINK",
}
_FLAGS: Final = {name: flags for flags, names in _COMMANDS.items() for name in names.split()}


def key_flags(name: str, words: Sequence[bytes]) -> tuple[str, ...]:
    """The flags of all keys of a command that has keys."""
    if name == "SET" and any(upper(word) == b"GET" for word in words[3:]):
        return _FLAGS["GETSET"]
    return _FLAGS[name]
