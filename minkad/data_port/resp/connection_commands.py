"""Commands about the connection itself."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from minkad.data_port.resp.command import Command, Kind, Run, Words, integer_of, syntax_error, upper
from minkad.data_port.resp.connection import DEFAULT_KEYSPACE, RespConnection
from minkad.data_port.resp.replies import NULL, OK, PONG, RespError, bulk, integer, reply

REDIS_VERSION: Final = "7.2.0"
"""The commands and answers here are those of this version of Redis."""

_NAME_BYTES: Final = 1024
_INFO_BYTES: Final = 128
_IDS: Final = 1024  # that CLIENT LIST takes


def _ping(connection: RespConnection, words: Words) -> bytes:
    if len(words) > 2:
        raise RespError("ERR wrong number of arguments for 'ping' command")
    return bulk(words[1], connection.resp3) if len(words) == 2 else PONG


def _echo(connection: RespConnection, words: Words) -> bytes:
    return bulk(words[1], connection.resp3)


def _quit(connection: RespConnection, words: Words) -> bytes:
    connection.end_after_answers()
    return OK


def _reset(connection: RespConnection, words: Words) -> bytes:
    connection.resp3 = connection.is_readonly = connection.is_refusing = False
    connection.name = b""
    connection.use(DEFAULT_KEYSPACE)
    return b"+RESET\r\n"


def _select(connection: RespConnection, words: Words) -> bytes:
    number = integer_of(words[1])
    if number:
        if connection.view.is_cluster:
            raise RespError("ERR SELECT is not allowed in cluster mode")
        raise RespError("ERR DB index is out of range")
    return OK


def _auth(connection: RespConnection, words: Words) -> bytes:
    if len(words) > 3:
        raise syntax_error()
    connection.use(words[1] if len(words) == 3 else DEFAULT_KEYSPACE)
    return OK


def _hello(connection: RespConnection, words: Words) -> bytes:
    version, keyspace, name = (3 if connection.resp3 else 2), connection.keyspace, connection.name
    if len(words) > 1:
        try:
            version = integer_of(words[1])
        except RespError:
            raise RespError("ERR Protocol version is not an integer or out of range") from None
        if version not in (2, 3):
            raise RespError("NOPROTO unsupported protocol version")
    at = 2
    while at < len(words):
        option = upper(words[at])
        if option == b"AUTH" and at + 2 < len(words):
            keyspace, at = words[at + 1], at + 3
        elif option == b"SETNAME" and at + 1 < len(words):
            name, at = _checked_name(words[at + 1]), at + 2
        else:
            raise RespError(f"ERR Syntax error in HELLO option '{words[at][:64].decode('utf-8', 'replace')}'")
    connection.use(keyspace)
    connection.resp3, connection.name = version == 3, name
    is_cluster = connection.service.is_cluster(connection)
    return reply(
        {
            "server": "redis",
            "version": REDIS_VERSION,
            "proto": version,
            "id": connection.id,
            "mode": "cluster" if is_cluster else "standalone",
            "role": "master",
            "modules": [],
        },
        connection.resp3,
    )


def _checked_name(name: bytes) -> bytes:
    if len(name) > _NAME_BYTES:
        raise RespError(f"ERR Client names cannot be longer than {_NAME_BYTES} bytes")
    if any(not 33 <= character <= 126 for character in name):
        raise RespError("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


def _client(connection: RespConnection, words: Words) -> bytes:
    what = upper(words[1])
    resp3 = connection.resp3
    if what == b"ID" and len(words) == 2:
        return integer(connection.id)
    if what == b"SETNAME" and len(words) == 3:
        connection.name = _checked_name(words[2])
        return OK
    if what == b"GETNAME" and len(words) == 2:
        return bulk(connection.name, resp3) if connection.name else NULL[resp3]
    if what == b"SETINFO" and len(words) == 4:
        return _set_info(connection, words[2], words[3])
    if what == b"INFO" and len(words) == 2:
        return bulk(f"{describe(connection)}\n".encode(), resp3)
    if what == b"LIST":
        shown = "".join(f"{describe(one)}\n" for one in _listed(connection, words[2:]))
        return bulk(shown.encode(), resp3)
    if what in (b"NO-EVICT", b"NO-TOUCH") and len(words) == 3:
        if upper(words[2]) not in (b"ON", b"OFF"):
            raise syntax_error()
        return OK
    if what == b"REPLY" and len(words) == 3 and upper(words[2]) == b"ON":
        return OK
    if what == b"GETREDIR" and len(words) == 2:
        return integer(-1)
    raise unknown_subcommand("CLIENT", words[1])


def _listed(connection: RespConnection, words: Words) -> Iterable[RespConnection]:
    """The connections for CLIENT LIST: all, those of a type, or some by id."""
    connections, option = connection.service.connections, upper(words[0]) if words else b""
    if not words:
        return connections.values()
    if option == b"TYPE" and len(words) == 2:
        if upper(words[1]) not in (b"NORMAL", b"MASTER", b"REPLICA", b"SLAVE", b"PUBSUB"):
            raise RespError(f"ERR Unknown client type '{words[1][:64].decode('utf-8', 'replace')}'")
        return connections.values() if upper(words[1]) == b"NORMAL" else ()
    if option == b"ID" and len(words) > 1:
        try:
            ids = [integer_of(word) for word in words[1:]]
        except RespError:
            raise RespError("ERR Invalid client ID") from None
        return [connections[id_] for id_ in ids if id_ in connections]
    raise syntax_error()


def _set_info(connection: RespConnection, option: bytes, value: bytes) -> bytes:
    name = upper(option)
    if name not in (b"LIB-NAME", b"LIB-VER"):
        raise RespError(f"ERR Unrecognized option '{option[:64].decode('utf-8', 'replace')}'")
    value = value[:_INFO_BYTES]
    if any(not 33 <= character <= 126 for character in value):
        raise RespError(f"ERR {name.decode().lower()} cannot contain spaces, newlines or special characters.")
    connection.library[name.decode().lower()] = value
    return OK


def unknown_subcommand(command: str, word: bytes) -> RespError:
    """The error for a subcommand that doesn't exist, or has other arguments."""
    shown = word[:128].decode("utf-8", "replace")
    return RespError(f"ERR unknown subcommand or wrong number of arguments for '{shown}'. Try {command} HELP.")


def describe(connection: RespConnection) -> str:
    """A line of CLIENT LIST."""
    fields: Mapping[str, object] = {
        "id": connection.id,
        "addr": connection.address,
        "laddr": connection.service.own_address,
        "name": connection.name.decode("ascii", "replace"),
        "age": int(time.monotonic() - connection.began),
        "flags": "r" if connection.is_readonly else "N",
        "db": 0,
        "user": connection.keyspace.decode("utf-8", "replace"),
        "resp": 3 if connection.resp3 else 2,
        "lib-name": connection.library.get("lib-name", b"").decode("ascii", "replace"),
        "lib-ver": connection.library.get("lib-ver", b"").decode("ascii", "replace"),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items())


_ANY, _ALONE = Kind.ANY, Kind.ALONE
_FLAGS: Final = ("noscript", "loading", "stale", "fast")


def _command(name: str, arity: int, run: Run, kind: Kind, summary: str, since: str = "1.0.0") -> Command:
    return Command(name, arity, run, kind, _FLAGS, summary, since=since, group="connection", most=_IDS)


COMMANDS: Final = (
    _command("PING", -1, _ping, _ANY, "Returns PONG, or the argument."),
    _command("ECHO", 2, _echo, _ANY, "Returns the argument."),
    _command("QUIT", -1, _quit, _ALONE, "Closes the connection."),
    _command("RESET", 1, _reset, _ALONE, "Forgets what was set for the connection.", "6.2.0"),
    _command("SELECT", 2, _select, _ANY, "Takes the only database, 0."),
    _command("AUTH", -2, _auth, _ALONE, "Chooses a keyspace, by the name of the user."),
    _command("HELLO", -1, _hello, _ALONE, "Chooses the version of the protocol, and a keyspace.", "6.0.0"),
    _command("CLIENT", -2, _client, _ANY, "Names and shows connections.", "2.4.0"),
)
