"""Addresses: `host:port`, or `[v6]:port`."""

import ipaddress
import re
from collections.abc import Callable
from typing import Final

MAX_PORT: Final = 65535

_HOST_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def split_address(address: str) -> tuple[str, int]:
    """Host (IPv6 without its brackets) and port of a checked `host:port` or `[v6]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """True if only this machine can dial it."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(address: str) -> bool:
    """True if it names every interface of this machine, so that no other machine can dial it."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def address_problem(value: str) -> str:
    """The reason why it isn't an address; "" if it is one."""
    host, colon, port = value.rpartition(":")
    if not colon:
        return "the port is missing"
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > MAX_PORT:
        return f"the port must be from 1 to {MAX_PORT}"
    if host.startswith("[") and host.endswith("]"):
        return _ip_problem(ipaddress.IPv6Address, host[1:-1])
    if ":" in host:
        return "an IPv6 address needs brackets"
    if re.fullmatch(r"[0-9.]+", host):
        return _ip_problem(ipaddress.IPv4Address, host)
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        return "the host is not a name or address" if host else "the host is missing"
    return ""


def _ip_problem(kind: Callable[[str], object], host: str) -> str:
    try:
        kind(host)
    except ipaddress.AddressValueError as error:
        return str(error)
    return ""
