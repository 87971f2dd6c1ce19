"""Mutual TLS: the files that it needs, and the checks of them."""

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection
    from pathlib import Path  # minkactl starts without it

    from minka.engine.handshake import Refusal

_MAX_FILE_BYTES: Final = 1 << 20
_END: Final = b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths to PEM files for TLS in which both sides show a certificate.

    `ca` holds the certificates of the authorities that must have issued the other side's. `cert` is this side's
    certificate, followed by those between it and the authority, if any, and `key` its private key, unencrypted. Only
    its owner may be able to read the key; if root owns it, a group may, too.
    """

    ca: "str | Path"
    cert: "str | Path"
    key: "str | Path"

    def read(self, hosts: "Collection[str]" = ()) -> Pem:
        """The files' content, checked. `hosts` are those by which others dial this side, if it is a node.

        Raises MinkaError(INVALID_CONFIG), which names every file with a mistake, or says why `refused`.
        """
        pem = self._files()
        if why := self.refused(hosts):
            from minka.errors import Code, MinkaError

            raise MinkaError(Code.INVALID_CONFIG, f"tls.cert: {why}")
        return pem

    def refused(self, hosts: "Collection[str]" = ()) -> str:
        """Why others will refuse the certificate, and what helps; "" if nothing is wrong that shows on this side.

        A node's, for `hosts`, has to be valid for each, and from an authority in `ca`, which the other nodes have too.
        A client's has to be valid today; its authority may be one that only the nodes have in their `ca`. Raises
        MinkaError(INVALID_CONFIG) for `mistakes`.
        """
        from minka.engine.handshake import refusal, remedy

        for host in hosts:
            found = refusal(self.server_context(), self.client_context(), host)
            if found is not None:
                whose = "" if not found.of_dates or self._alone() else f"its authority's, in {self.ca} or beside it: "
                return f"{self.cert}: {whose}{found.words}: {remedy(found)}"
        found = None if hosts else self._alone()
        return f"{self.cert}: {found.words}: {remedy(found)}" if found is not None else ""

    def _alone(self) -> "Refusal | None":
        """Why a server refuses the certificate, whoever issued it."""
        import ssl

        from minka.engine.handshake import refusal

        first = self._files().cert.partition(_END)[0] + _END
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        server.verify_mode = ssl.CERT_REQUIRED
        server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for context in (server, client):
            self._load(context, first)  # not `ca`: the client would send the authority's, to be checked as well
        return refusal(server, client)

    def _files(self) -> Pem:
        pem, mistakes = self._examine()
        if mistakes:
            # Imported here: minkactl reads its contexts without what errors need.
            from minka.errors import Code, MinkaError

            text = "; ".join(f"tls.{name}: {mistake}" for name, mistake in mistakes.items())
            raise MinkaError(Code.INVALID_CONFIG, text)
        return pem

    def server_context(self) -> "ssl.SSLContext":
        """For the side that is connected to. Raises MinkaError(INVALID_CONFIG)."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context, self._files().ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> "ssl.SSLContext":
        """For the side that connects: the other side's certificate must be for the host that is dialled. Raises
        MinkaError(INVALID_CONFIG).
        """
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context, self._files().ca)
        return context

    def _load(self, context: "ssl.SSLContext", trusted: bytes) -> None:
        import ssl

        try:
            context.load_cert_chain(self.cert, self.key, password="")
            context.load_verify_locations(cadata=trusted.decode("ascii", "ignore"))
        except (OSError, ssl.SSLError) as error:
            from minka.errors import Code, MinkaError

            raise MinkaError(Code.INVALID_CONFIG, f"tls: {error}") from error

    def mistakes(self) -> dict[str, str]:
        """What is wrong, by the names `ca`, `cert` and `key`. None of the key's content is in it."""
        return self._examine()[1]

    def _examine(self) -> tuple[Pem, dict[str, str]]:
        contents: dict[str, bytes] = {}
        mistakes: dict[str, str] = {}
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            try:
                contents[name], status = _content(path)
            except OSError as error:
                mistakes[name] = f"{path}: {error.strerror}"
                continue
            if name != "key" and not _has_certificates(contents[name]):
                mistakes[name] = f"{path}: holds no certificate in PEM form"
            if name == "key" and (readers := _others_who_read(status)):
                mistakes[name] = (
                    f"{path}: {readers} may read it (mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 {path}"
                )
        if not {"cert", "key"} & mistakes.keys() and (problem := self._pair_problem()):
            mistakes["key"] = f"{self.key}: {problem}"
        return Pem(contents.get("ca", b""), contents.get("cert", b""), contents.get("key", b"")), mistakes

    def _pair_problem(self) -> str:
        import ssl

        try:
            # Without a password given, OpenSSL would ask for one on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                return f"is not the key of {self.cert}"
            return "holds no private key in PEM form, or an encrypted one"
        except OSError as error:
            return str(error.strerror)
        return ""


def _content(path: "str | Path") -> tuple[bytes, os.stat_result]:
    """The file's content, with its owner and mode. Raises OSError, also for more than 1 MiB."""
    with open(path, "rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
        status = os.fstat(file.fileno())
    if len(content) > _MAX_FILE_BYTES:
        raise OSError(0, "larger than 1 MiB")
    return content, status


def _others_who_read(key: os.stat_result) -> str:
    """The readers that the private key must not have besides its owner, for people; "" if there are none, by
    PostgreSQL's rule.

    A key that root owns may be readable by a group: so the system's store of keys, and secrets of Kubernetes, are
    shared with a service (PostgreSQL, "Secure TCP/IP Connections with SSL").
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
