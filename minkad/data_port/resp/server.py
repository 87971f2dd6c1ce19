"""Commands about the node: its properties, its settings, and its commands."""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Final

from minka import __version__
from minkad.config.addresses import split_address
from minkad.data_port.resp.command import Command, Kind, Words, syntax_error, upper, wrong_number
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.connection_commands import REDIS_VERSION, unknown_subcommand
from minkad.data_port.resp.globs import Glob
from minkad.data_port.resp.key_flags import key_flags
from minkad.data_port.resp.keyspaces import View
from minkad.data_port.resp.replies import OK, Reply, RespError, Simple, bulk, integer, reply

# Settings that clients and redis-benchmark ask for; the values describe Minka in the words of Redis.
_CONFIG: Final = {
    "appendfsync": "always",
    "appendonly": "yes",
    "databases": "1",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "notify-keyspace-events": "",
    "proto-max-bulk-len": "16777216",
    "requirepass": "",
    "save": "",
    "timeout": "0",
}


def _config(connection: RespConnection, words: Words) -> bytes:
    what = upper(words[1])
    if what == b"GET":
        if len(words) < 3:
            raise wrong_number("config|get")
        patterns = [Glob(word.lower()) for word in words[2:]]
        settings = _CONFIG | _settings(connection)
        found: dict[str, Reply] = {
            name: value for name, value in settings.items() if any(one.matches(name.encode()) for one in patterns)
        }
        return reply(found, connection.resp3)
    if what == b"RESETSTAT" and len(words) == 2:
        return OK
    if what in (b"SET", b"REWRITE"):
        raise RespError("ERR a node of Minka is set by its configuration file; see docs/operations.md")
    raise unknown_subcommand("CONFIG", words[1])


def _settings(connection: RespConnection) -> dict[str, str]:
    service = connection.service
    host, port = split_address(service.own_address)
    return {
        "bind": host,
        "cluster-enabled": "yes" if service.is_cluster(connection) else "no",
        "maxclients": str(service.memory.max_shares),
        "port": str(port),
    }


def _info(connection: RespConnection, words: Words) -> bytes:
    wanted = {upper(word).decode("utf-8", "replace").lower() for word in words[1:]}
    is_all = not wanted or bool(wanted & {"all", "default", "everything"})
    sections = [section(connection) for name, section in _SECTIONS.items() if is_all or name in wanted]
    return bulk("\r\n".join(sections).encode(), connection.resp3)


def _section(title: str, fields: dict[str, object]) -> str:
    return f"# {title}\r\n" + "".join(f"{name}:{value}\r\n" for name, value in fields.items())


def _server_section(connection: RespConnection) -> str:
    service = connection.service
    up = int(time.monotonic() - service.started)
    fields: dict[str, object] = {
        "redis_version": REDIS_VERSION,
        "server_name": "minka",
        "minka_version": __version__,
        "minka_node": service.means.node_id,
        "minka_keyspace": connection.keyspace.decode("utf-8", "replace"),
        "arch_bits": 64 if sys.maxsize > 2**32 else 32,
        "redis_mode": "cluster" if service.is_cluster(connection) else "standalone",
        "tcp_port": split_address(service.own_address)[1],
        "uptime_in_seconds": up,
        "uptime_in_days": up // 86_400,
    }
    return _section("Server", fields)


def _clients_section(connection: RespConnection) -> str:
    return _section("Clients", {"connected_clients": len(connection.service.connections), "blocked_clients": 0})


def _memory_section(connection: RespConnection) -> str:
    memory = connection.service.memory
    fields: dict[str, object] = {"used_memory_clients": memory.used, "maxmemory": 0, "maxmemory_policy": "noeviction"}
    return _section("Memory", fields)


def _persistence_section(connection: RespConnection) -> str:
    return _section("Persistence", {"loading": 0, "aof_enabled": 1, "aof_last_write_status": "ok"})


def _stats_section(connection: RespConnection) -> str:
    service = connection.service
    fields: dict[str, object] = {
        "total_connections_received": service.connections_made,
        "total_commands_processed": service.commands_done,
    }
    return _section("Stats", fields)


def _replication_section(connection: RespConnection) -> str:
    return _section("Replication", {"role": "master", "connected_slaves": 0})


def _cluster_section(connection: RespConnection) -> str:
    return _section("Cluster", {"cluster_enabled": int(connection.service.is_cluster(connection))})


def _keyspace_section(connection: RespConnection) -> str:
    view = connection.service.keyspaces.view(connection.keyspace)
    size = _size(connection, view) if view is not None else 0
    return _section("Keyspace", {"db0": f"keys={size}"} if size else {})


_SECTIONS: Final[dict[str, Callable[[RespConnection], str]]] = {
    "server": _server_section,
    "clients": _clients_section,
    "memory": _memory_section,
    "persistence": _persistence_section,
    "stats": _stats_section,
    "replication": _replication_section,
    "cluster": _cluster_section,
    "keyspace": _keyspace_section,
}


def _latency(connection: RespConnection, words: Words) -> bytes:
    what = upper(words[1])
    if what == b"RESET":
        return integer(0)
    if what == b"LATEST" and len(words) == 2:
        return reply([], connection.resp3)
    if what == b"HISTORY" and len(words) == 3:
        return reply([], connection.resp3)
    raise unknown_subcommand("LATENCY", words[1])


def _time(connection: RespConnection, words: Words) -> bytes:
    microseconds = time.time_ns() // 1000
    return reply([str(microseconds // 1_000_000), str(microseconds % 1_000_000)], connection.resp3)


def _role(connection: RespConnection, words: Words) -> bytes:
    return reply(["master", 0, []], connection.resp3)


def _command(connection: RespConnection, words: Words) -> bytes:
    names, resp3 = connection.service.names, connection.resp3
    if len(words) == 1:
        return reply([_described(command) for command in names.values()], resp3)
    what = upper(words[1])
    if what == b"COUNT" and len(words) == 2:
        return integer(len(names))
    if what == b"LIST":
        return reply([command.name.lower() for command in _listed(names.values(), words[2:])], resp3)
    if what == b"INFO":
        chosen: Iterable[Command | None] = (
            [names.get(upper(word)) for word in words[2:]] if len(words) > 2 else names.values()
        )
        return reply([_described(one) if one is not None else None for one in chosen], resp3)
    if what == b"DOCS":
        found = [names.get(upper(word)) for word in words[2:]] if len(words) > 2 else list(names.values())
        return reply({one.name.lower(): _documented(one) for one in found if one is not None}, resp3)
    if what == b"GETKEYS" and len(words) > 2:
        return reply(_keys_of(names.get(upper(words[2])), words[2:]), resp3)
    if what == b"GETKEYSANDFLAGS" and len(words) > 2:
        keys = _keys_of(names.get(upper(words[2])), words[2:])
        flags: list[Reply] = [Simple(flag) for flag in key_flags(words[2].decode().upper(), words[2:])]
        return reply([[key, flags] for key in keys], resp3)
    raise unknown_subcommand("COMMAND", words[1])


def _keys_of(command: Command | None, words: Words) -> list[bytes]:
    if command is None:
        raise RespError("ERR Invalid command specified")
    if not command.first:
        raise RespError("ERR The command has no key arguments")
    try:
        command.check(words)
    except RespError:
        raise RespError("ERR Invalid number of arguments specified for command") from None
    return command.keys(words)


def _listed(commands: Iterable[Command], words: Words) -> Iterable[Command]:
    """The commands that COMMAND LIST FILTERBY names, or all."""
    if not words:
        return commands
    option = upper(words[1]) if len(words) == 3 and upper(words[0]) == b"FILTERBY" else b""
    if option == b"PATTERN":
        pattern = Glob(words[2].lower())
        return [command for command in commands if pattern.matches(command.name.lower().encode())]
    if option == b"ACLCAT":
        category = "@" + upper(words[2]).decode("utf-8", "replace").lower()
        return [command for command in commands if category in _categories(command)]
    if option == b"MODULE":
        return []
    raise syntax_error()


def _categories(command: Command) -> list[str]:
    found = ["@write" if "write" in command.flags else "@read" if "readonly" in command.flags else ""]
    found += [{"generic": "@keyspace", "cluster": "", "server": ""}.get(command.group, f"@{command.group}")]
    return [one for one in (*found, "@fast" if "fast" in command.flags else "@slow") if one]


def _described(command: Command) -> Reply:
    categories: list[Reply] = [Simple(category) for category in _categories(command)]
    flags: list[Reply] = [Simple(flag) for flag in command.flags]
    name = command.name.lower()
    return [
        name,
        command.arity,
        flags,
        command.first,
        command.last,
        command.step,
        categories,
        list(command.tips),
        [],
        [],
    ]


def _documented(command: Command) -> Reply:
    return {"summary": command.summary, "since": command.since, "group": command.group}


def _dbsize(connection: RespConnection, words: Words) -> bytes:
    return integer(_size(connection, connection.view))


def _size(connection: RespConnection, view: View) -> int:
    """About the number of keys in the partitions that this node leads."""
    node_id, size = connection.service.means.node_id, connection.service.means.requests.key_count
    return sum(size(route.partition_id) for route in view.routes() if route.leader == node_id)


_FLAGS: Final = ("loading", "stale", "fast")
_NAMES: Final = 1024  # words of COMMAND, such as the names of all commands

COMMANDS: Final = (
    Command("COMMAND", -1, _command, Kind.ANY, _FLAGS, "Describes the commands.", since="2.8.13", group="server",
            most=_NAMES),
    Command("CONFIG", -2, _config, Kind.ANY, _FLAGS, "Returns how Minka would be set as a Redis.", since="2.0.0",
            group="server"),
    Command("INFO", -1, _info, Kind.ANY, _FLAGS, "Describes the node.", group="server",
            tips=("nondeterministic_output", "request_policy:all_shards", "response_policy:special")),
    Command("LATENCY", -2, _latency, Kind.ANY, _FLAGS, "Returns no events.", since="2.8.13", group="server"),
    Command("TIME", 1, _time, Kind.ANY, _FLAGS, "Returns the time of the node's clock.", since="2.6.0",
            group="server"),
    Command("ROLE", 1, _role, Kind.ANY, _FLAGS, "Returns that of a master.", since="2.8.12", group="server"),
    Command("DBSIZE", 1, _dbsize, Kind.READ, ("readonly", "fast"),
            "Estimates how many keys the partitions that this node leads have.", group="server",
            tips=("request_policy:all_shards", "response_policy:agg_sum")),
)  # fmt: skip
