"""The files that mutual TLS needs."""

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path  # for types only: minkactl starts faster without it


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths to PEM files for TLS in which both sides show a certificate.

    `ca` holds the certificates of the authorities, one of which must have issued the other side's certificate. `cert`
    is this side's certificate, followed by any intermediate certificates, and `key` its private key, unencrypted. Only
    the owner of the key file may be able to read it; if root owns the file, the file's group may read it, too. Raises
    INVALID_ARGUMENT for anything that can't be a path.
    """

    ca: "str | Path"
    cert: "str | Path"
    key: "str | Path"

    def __post_init__(self) -> None:
        for field in fields(self):
            if problem := _problem(getattr(self, field.name)):
                from minka.errors import Code, MinkaError  # here: minkactl starts faster without it

                raise MinkaError(Code.INVALID_ARGUMENT, f"tls.{field.name} {problem}")


def _problem(path: object) -> str:
    """The reason why `path` can't be the path of a file; "" if it can be such a path."""
    if not isinstance(path, str | os.PathLike):
        return f"is {type(path).__name__}, not str or Path"
    try:
        return f"isn't a path: {path!r}" if b"\0" in os.fsencode(path) else ""
    except UnicodeEncodeError:
        return f"isn't a path: {path!r}"
