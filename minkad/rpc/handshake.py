"""A TLS handshake within this process: it shows if certificates work, before anybody else sees them.

The standard library can't read its own side's certificate. In a handshake, OpenSSL checks everything that counts:
dates, authority, purpose, and host.
"""

import ssl
from typing import Final, NamedTuple


class Refusal(NamedTuple):
    """The reason why one side refuses the other's certificate: OpenSSL's number (x509_vfy.h), and its text."""

    code: int
    words: str

    @property
    def of_dates(self) -> bool:
        """True if the certificate, or one in its chain, isn't valid today."""
        return self.code in (_NOT_YET_VALID, _EXPIRED)


_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_NO_AUTHORITY: Final = (2, 18, 19, 20, 21)
_WRONG_PURPOSE: Final = 26
_OTHER_HOST: Final = (62, 64)
_OTHER: Final = -1


def refusal(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Refusal | None:
    """The reason why a handshake between server and client fails if the client dials `host`; None if it succeeds."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        while waiting:  # each side goes on with the other's last message
            waiting = [side for side in waiting if not _is_done(side)]
    except ssl.SSLCertVerificationError as error:
        return Refusal(error.verify_code, error.verify_message.rstrip("."))
    except ssl.SSLError as error:
        return Refusal(_OTHER, error.reason or str(error))
    return None


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def remedy(found: Refusal) -> str:
    """The advice for a person."""
    if found.code in _NO_AUTHORITY:
        return (
            "no authority in tls.ca issued it: use a certificate of one that is there, or add its authority to tls.ca"
        )
    if found.code == _WRONG_PURPOSE:
        return (
            "a node's needs serverAuth and clientAuth if it states an extended key usage, and digitalSignature if it "
            "states a key usage"
        )
    if found.code in _OTHER_HOST:
        return "name that host in its subjectAltName, since others dial it"
    return "use another certificate"
