"""Which cluster to talk to: --endpoints, --context, MINKA_ENDPOINTS, the current context, a playground, the default.

The configuration file is `$XDG_CONFIG_HOME/minka/config.yaml` (default `~/.config/minka/config.yaml`):

    current: prod
    contexts:
      prod: {endpoints: [10.0.0.1:7400, 10.0.0.2:7400]}
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_ENDPOINT = "127.0.0.1:7400"
MAX_ENDPOINTS = 1000


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the nodes are, and who said so, for people: "MINKA_ENDPOINTS", "context prod"."""

    addresses: tuple[str, ...]
    source: str


@dataclass(slots=True)
class Config:
    """The configuration file: the contexts by name, each its endpoints, and which one is current ("" for none)."""

    contexts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    current: str = ""


def config_path() -> Path:
    """Where the configuration file is, whether or not it exists."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    base = Path(home) if home.startswith("/") else Path.home() / ".config"
    return base / "minka" / "config.yaml"


def split_endpoints(text: str, source: str) -> tuple[str, ...]:
    """host:port, separated by commas or blanks.

    Raises MinkaError(INVALID_ARGUMENT) naming `source` when one isn't host:port, or when there is none.
    """
    addresses = tuple(text.replace(",", " ").split())
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise invalid(f"{source}: {address!r} is not host:port")
    if not addresses or len(addresses) > MAX_ENDPOINTS:
        raise invalid(f"{source}: {len(addresses)} endpoints; 1 to {MAX_ENDPOINTS} are needed")
    return addresses


def load() -> Config:
    """The configuration file; empty when there is none. Raises MinkaError(INVALID_CONFIG) for a mistake in it."""
    path = config_path()
    if not path.exists():  # spares the import of yaml
        return Config()
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise invalid(f"{path}: {' '.join(str(error).split())}", "INVALID_CONFIG") from error
    return _parsed(content if content is not None else {}, path)


def _parsed(content: Any, path: Path) -> Config:
    if not isinstance(content, dict) or not isinstance(content.get("contexts") or {}, dict):
        raise invalid(f"{path}: contexts must be a mapping from a name to its endpoints", "INVALID_CONFIG")
    config = Config(current=str(content.get("current") or ""))
    for name, entry in (content.get("contexts") or {}).items():
        listed = entry.get("endpoints") if isinstance(entry, dict) else None
        if not isinstance(listed, list):
            raise invalid(f"{path}: contexts.{name}.endpoints must be a list of host:port", "INVALID_CONFIG")
        config.contexts[str(name)] = split_endpoints(" ".join(map(str, listed)), f"{path}: contexts.{name}")
    return config


def save(config: Config) -> None:
    """Replace the configuration file, atomically, readable by its owner only."""
    import yaml

    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "current": config.current,
        "contexts": {name: {"endpoints": list(addresses)} for name, addresses in config.contexts.items()},
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")
    temporary.replace(path)


def resolve(option: str = "", context: str = "", environ: Mapping[str, str] = os.environ) -> Endpoints:
    """The endpoints to use, by the order in this file's first line.

    `option` is the value of --endpoints and `context` that of --context, "" where not given.
    Raises MinkaError: INVALID_ARGUMENT, INVALID_CONFIG, UNKNOWN_CONTEXT.
    """
    if option:
        return Endpoints(split_endpoints(option, "--endpoints"), "--endpoints")
    if not context and environ.get("MINKA_ENDPOINTS"):
        return Endpoints(split_endpoints(environ["MINKA_ENDPOINTS"], "MINKA_ENDPOINTS"), "MINKA_ENDPOINTS")
    config = load()
    name = context or config.current
    if name:
        return Endpoints(find(config, name), f"context {name}")
    from minkactl import pointer

    playground = pointer.read()
    if playground is not None:
        return Endpoints(playground.endpoints, "playground")
    return Endpoints((DEFAULT_ENDPOINT,), "default")


def find(config: Config, name: str) -> tuple[str, ...]:
    """The endpoints of a context. Raises MinkaError(UNKNOWN_CONTEXT)."""
    if name not in config.contexts:
        known = ", ".join(sorted(config.contexts)) or "none"
        raise invalid(f"no context {name!r} in {config_path()}; it has: {known}", "UNKNOWN_CONTEXT")
    return config.contexts[name]


def invalid(message: str, code: str = "INVALID_ARGUMENT") -> Exception:
    """The MinkaError to raise; the registry is imported only when there is something to report."""
    from minka.errors import Code, MinkaError

    return MinkaError(Code[code], message)
