"""The configuration in force: its display, and its changes by a reload."""

from dataclasses import replace
from typing import Any

from minkad.config.schema import DEFAULT, KEYS, Config
from minkad.config.yaml_values import Peer, flow_text

_RELOADED = ("limits.", "loads.", "log.", "migrations.", "ranges.")
RELOADABLE = frozenset(key for key in KEYS if key.startswith(_RELOADED))
"""The dotted keys that SIGHUP may change; any other needs a restart."""


def diff(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """The differences, as "key: old → new": first those that a reload can apply, then those that need a restart."""
    reloaded: list[str] = []
    restart: list[str] = []
    for key in KEYS:
        before, after = old.value(key), new.value(key)
        if before != after:
            (reloaded if key in RELOADABLE else restart).append(f"{key}: {_shown(before)} → {_shown(after)}")
    return reloaded, restart


def apply_reload(old: Config, new: Config) -> Config:
    """`old` with the reloadable values of `new`: the configuration in force after a reload."""
    origins = {key: (new if key in RELOADABLE else old).origins.get(key, DEFAULT) for key in KEYS}
    return replace(
        old,
        limits=new.limits,
        loads=new.loads,
        log=new.log,
        migrations=new.migrations,
        ranges=new.ranges,
        origins=origins,
    )


def describe(config: Config) -> list[str]:
    """The effective configuration, a line a key, each with the origin of its value."""
    lines = [(f"{key}: {_shown(config.value(key))}", config.origins.get(key, DEFAULT)) for key in KEYS]
    width = max(len(line) for line, _ in lines if len(line) <= 60)
    return [f"{line:<{width}}  # {origin}" for line, origin in lines]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(str(item) if isinstance(item, Peer) else flow_text(item) for item in value)}]"
    return str(value) if value != "" else '""'
