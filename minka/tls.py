"""The files that mutual TLS needs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path  # minkactl starts without it


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths to PEM files for TLS in which both sides show a certificate.

    `ca` holds the certificates of the authorities, one of which must have issued the other side's certificate. `cert`
    is this side's certificate, followed by any intermediate certificates, and `key` its private key, unencrypted. Only
    the key file's owner may be able to read it; if root owns the file, its group may also read it.
    """

    ca: "str | Path"
    cert: "str | Path"
    key: "str | Path"
