"""Reads and checks the files that mutual TLS needs, and makes TLS contexts of them."""

import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from minka.certificates import validities
from minka.errors import Code, MinkaError
from minka.tls import Tls

if TYPE_CHECKING:
    import ssl
    from pathlib import Path  # for types only: minkactl starts faster without it

_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the three files that a `Tls` names."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)


def read(tls: Tls) -> Pem:
    """Read and check the files, and return their content. Raises MinkaError(INVALID_CONFIG), which names every file
    with a mistake, and CERTIFICATE_EXPIRED if this side's certificate isn't valid now.
    """
    pem = content(tls)
    _check_dates(tls, pem)
    return pem


def content(tls: Tls) -> Pem:
    """Read and check the files, except the dates of this side's certificate, and return their content. Raises
    MinkaError(INVALID_CONFIG), as `read` does.
    """
    pem, found = _examine(tls)
    if found:
        text = "; ".join(f"tls.{name}: {mistake}" for name, mistake in found.items())
        raise MinkaError(Code.INVALID_CONFIG, text)
    return pem


def _check_dates(tls: Tls, pem: Pem) -> None:
    """Check that this side's certificate, the first in the file `cert`, is valid now. The dates of the file's other
    certificates aren't checked, since the other side may not need those certificates.
    """
    own, now = validities(pem.cert)[0], time.time()
    if not own.begins <= now <= own.ends:
        when = f"was valid until {_date(own.ends)}" if own.ends < now else f"is valid from {_date(own.begins)}"
        raise MinkaError(Code.CERTIFICATE_EXPIRED, f"tls.cert: {tls.cert}: {when} only")


def server_context(tls: Tls, pem: Pem) -> "ssl.SSLContext":
    """The context for the side that accepts connections. `pem` is the result of `read`. Raises
    MinkaError(INVALID_CONFIG).
    """
    import ssl

    context = _loaded(tls, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pem)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: Tls, pem: Pem) -> "ssl.SSLContext":
    """The context for the side that connects. The other side's certificate must be for the host that this side calls.
    Raises MinkaError(INVALID_CONFIG).
    """
    import ssl

    return _loaded(tls, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pem)


def _loaded(tls: Tls, context: "ssl.SSLContext", pem: Pem) -> "ssl.SSLContext":
    import ssl

    try:
        context.load_cert_chain(tls.cert, tls.key, password="")
        context.load_verify_locations(cadata=pem.ca.decode("ascii", "ignore"))
    except (OSError, ssl.SSLError) as error:
        raise MinkaError(Code.INVALID_CONFIG, f"tls: {error}") from error
    return context


def mistakes(tls: Tls) -> dict[str, str]:
    """The mistakes in the files, by the names `ca`, `cert` and `key`. The texts never contain the private key."""
    return _examine(tls)[1]


def _examine(tls: Tls) -> tuple[Pem, dict[str, str]]:
    contents: dict[str, bytes] = {}
    found: dict[str, str] = {}
    for name, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        try:
            contents[name], status = _content(path)
        except OSError as error:
            found[name] = f"{path}: {error.strerror}"
            continue
        if name != "key" and not _has_certificates(contents[name]):
            found[name] = f"{path}: holds no certificate in PEM form"
        if name == "key" and (readers := _others_who_read(status)):
            found[name] = f"{path}: {readers} may read it (mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 {path}"
    if not {"cert", "key"} & found.keys() and (problem := _pair_problem(tls)):
        found["key"] = f"{tls.key}: {problem}"
    return Pem(contents.get("ca", b""), contents.get("cert", b""), contents.get("key", b"")), found


def _pair_problem(tls: Tls) -> str:
    import ssl

    try:
        # Without a password given, OpenSSL would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"is not the key of {tls.cert}"
        return "holds no private key in PEM form, or an encrypted one"
    except OSError as error:
        return str(error.strerror)
    return ""


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _content(path: "str | Path") -> tuple[bytes, os.stat_result]:
    """The file's content, with its owner and mode. Raises OSError, also for a file of more than 1 MiB."""
    with open(path, "rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
        status = os.fstat(file.fileno())
    if len(content) > _MAX_FILE_BYTES:
        raise OSError(0, "larger than 1 MiB")
    return content, status


def _others_who_read(key: os.stat_result) -> str:
    """The users who can read the private key although PostgreSQL's rule forbids it, as text for people: "everybody",
    "its group"; "" if there are none.

    A group may read a key that root owns, so that a service can use the system's store of keys, or secrets of
    Kubernetes (PostgreSQL, "Secure TCP/IP Connections with SSL").
    """
    if key.st_mode & (stat.S_IRWXO):
        return "everybody"
    allowed = stat.S_IRGRP if key.st_uid == 0 else 0
    return "its group" if key.st_mode & stat.S_IRWXG & ~allowed else ""


def _has_certificates(pem: bytes) -> bool:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        return False
    return True
