"""The choice of a cluster, for minkactl and for clients that are made without endpoints. The first of these that is set
counts: --endpoints, --context, MINKA_ENDPOINTS, the current context, a running playground, the default.

The configuration file is `$XDG_CONFIG_HOME/minka/config.yaml` (default `~/.config/minka/config.yaml`):

    current: prod
    contexts:
      prod:
        endpoints: [10.0.0.1:7400, 10.0.0.2:7400]
        tls: {ca: /home/me/prod/ca.pem, cert: /home/me/prod/me.pem, key: /home/me/prod/me.key}

A context with TLS names its TLS files; a playground has no TLS. For --endpoints, MINKA_ENDPOINTS and the default,
MINKA_TLS_CA, MINKA_TLS_CERT and MINKA_TLS_KEY name the files.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from minka.cluster.endpoints import DEFAULT_ENDPOINT, endpoint_problem
from minka.tls import Tls

MAX_ENDPOINTS = 1000
_TLS_FILES: Final = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of nodes, and their source as text for people: "MINKA_ENDPOINTS", "context prod"."""

    addresses: tuple[str, ...]
    source: str
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster's entry in the configuration file; `tls` is None for a cluster without TLS."""

    endpoints: tuple[str, ...]
    tls: Tls | None = None


@dataclass(slots=True)
class Config:
    """The content of the configuration file: the contexts by name, and the name of the current one ("": none)."""

    contexts: dict[str, Context] = field(default_factory=dict)
    current: str = ""


def config_path() -> str:
    """The path of the configuration file, which may not exist."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says that a relative path is ignored.
    base = home if home.startswith("/") else os.path.expanduser("~/.config")
    return os.path.join(base, "minka", "config.yaml")


def split_endpoints(text: str, source: str, code: str = "INVALID_ARGUMENT") -> tuple[str, ...]:
    """The addresses host:port in a text, where commas or blanks separate them.

    Raises MinkaError if there is no address, if there are more than `MAX_ENDPOINTS`, or if one of them isn't
    host:port. The error has the code `code`, and names `source`.
    """
    addresses = tuple(text.replace(",", " ").split())
    for address in addresses:
        if problem := endpoint_problem(address):
            hint = ": commas separate endpoints" if ";" in address else ""
            raise invalid(f"{source}: {address!r} {problem}{hint}", code)
    if not addresses or len(addresses) > MAX_ENDPOINTS:
        raise invalid(f"{source}: {len(addresses)} endpoints; 1 to {MAX_ENDPOINTS} are needed", code)
    return addresses


def load() -> Config:
    """The content of the configuration file; an empty `Config` if there is no file. Raises MinkaError(INVALID_CONFIG)
    for a mistake in it.
    """
    path = config_path()
    if not os.path.exists(path):  # return early, so that yaml isn't imported
        return Config()
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise invalid(f"{path}: {' '.join(str(error).split())}", "INVALID_CONFIG") from error
    return _parsed(content if content is not None else {}, path)


def _parsed(content: Any, path: str) -> Config:
    if not isinstance(content, dict) or not isinstance(content.get("contexts") or {}, dict):
        raise invalid(f"{path}: contexts must be a mapping from a name to its endpoints", "INVALID_CONFIG")
    config = Config(current=str(content.get("current") or ""))
    for name, entry in (content.get("contexts") or {}).items():
        listed = entry.get("endpoints") if isinstance(entry, dict) else None
        if not isinstance(listed, list):
            raise invalid(f"{path}: contexts.{name}.endpoints must be a list of host:port", "INVALID_CONFIG")
        endpoints = split_endpoints(" ".join(map(str, listed)), f"{path}: contexts.{name}", "INVALID_CONFIG")
        config.contexts[str(name)] = Context(endpoints, _parsed_tls(entry.get("tls"), f"{path}: contexts.{name}.tls"))
    return config


def _parsed_tls(entry: Any, where: str) -> Tls | None:
    if entry is None:
        return None
    if not isinstance(entry, dict) or set(entry) != set(_TLS_FILES):
        raise invalid(f"{where} must have exactly ca, cert and key", "INVALID_CONFIG")
    paths = {name: os.path.expanduser(str(path)) for name, path in entry.items()}
    for name, path in paths.items():
        if not os.path.isabs(path) or "\0" in path:
            raise invalid(f"{where}.{name} must be an absolute path, not {path!r}", "INVALID_CONFIG")
    return Tls(**paths)


def _tls_of(environ: Mapping[str, str]) -> Tls | None:
    """The files that MINKA_TLS_… name. Raises MinkaError(INVALID_ARGUMENT) if only some of the variables are set."""
    paths = {name: environ.get(f"MINKA_TLS_{name.upper()}", "") for name in _TLS_FILES}
    if not any(paths.values()):
        return None
    for name, path in paths.items():
        if not path:
            raise invalid(f"MINKA_TLS_{name.upper()} is missing: MINKA_TLS_CA, …_CERT and …_KEY go together")
    return Tls(**paths)


def tls_document(tls: Tls | None) -> dict[str, str] | None:
    """The paths of the TLS files, by the names `ca`, `cert` and `key`, as the configuration file has them and minkactl
    prints them; None without TLS.
    """
    return None if tls is None else {name: str(getattr(tls, name)) for name in _TLS_FILES}


def save(config: Config) -> None:
    """Replace the configuration file atomically. Only its owner can read it."""
    from pathlib import Path

    import yaml

    path = Path(config_path())
    path.parent.mkdir(parents=True, exist_ok=True)
    contexts: dict[str, dict[str, Any]] = {}
    for name, context in config.contexts.items():
        contexts[name] = {"endpoints": list(context.endpoints)}
        if context.tls is not None:
            contexts[name]["tls"] = tls_document(context.tls)
    content = {"current": config.current, "contexts": contexts}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")
    temporary.replace(path)


def given_or_resolved(
    endpoints: Sequence[str] | None, tls: Tls | None, context: str | None = None
) -> tuple[Sequence[str], Tls | None]:
    """The endpoints and the TLS files that a caller gave, or the result of `resolve` if the caller gave no endpoints.
    Raises the errors of `resolve`, and INVALID_ARGUMENT if both endpoints and a context are given.
    """
    if endpoints is not None:
        if context is not None:
            raise invalid(f"give either endpoints or the context {context!r}, not both")
        return endpoints, tls
    if context == "":
        raise invalid("the context's name is empty; None stands for the cluster that minkactl would use")
    found = resolve(context=context or "")
    return found.addresses, tls or found.tls


def resolve(option: str = "", context: str = "", environ: Mapping[str, str] = os.environ) -> Endpoints:
    """Choose the endpoints, in the order that this module's docstring gives.

    `option` is the value of --endpoints and `context` the value of --context; "" if not given.
    Raises MinkaError: INVALID_ARGUMENT, INVALID_CONFIG, UNKNOWN_CONTEXT.
    """
    if option:
        return Endpoints(split_endpoints(option, "--endpoints"), "--endpoints", _tls_of(environ))
    if not context and environ.get("MINKA_ENDPOINTS"):
        addresses = split_endpoints(environ["MINKA_ENDPOINTS"], "MINKA_ENDPOINTS")
        return Endpoints(addresses, "MINKA_ENDPOINTS", _tls_of(environ))
    config = load()
    name = context or config.current
    if name:
        found = find(config, name)
        return Endpoints(found.endpoints, f"context {name}", found.tls)
    from minka import running_playground

    playground = running_playground.read()
    if playground is not None:
        return Endpoints(playground.endpoints, "playground")
    return Endpoints((DEFAULT_ENDPOINT,), "default", _tls_of(environ))


def find(config: Config, name: str) -> Context:
    """The context of this name. Raises MinkaError(UNKNOWN_CONTEXT)."""
    if name not in config.contexts:
        known = ", ".join(sorted(config.contexts)) or "none"
        raise invalid(f"no context {name!r} in {config_path()}; it has: {known}", "UNKNOWN_CONTEXT")
    return config.contexts[name]


def invalid(message: str, code: str = "INVALID_ARGUMENT") -> Exception:
    """The MinkaError to raise; the registry of codes is imported only if there is an error."""
    from minka.errors import Code, MinkaError

    return MinkaError(Code[code], message)
