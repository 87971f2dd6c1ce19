"""This node's certificates for gRPC and the data port, and their renewal while it runs."""

import ssl
from collections.abc import Collection

import grpc

from minka import tls_files
from minka.certificates import first_expiry
from minka.errors import Code, MinkaError
from minka.tls import Tls
from minka.tls_files import Pem
from minkad.rpc.handshake import refusal, remedy


class Credentials:
    """The credentials of the servers, of the channels, and of connections to data ports.

    Raises MinkaError: INVALID_CONFIG for a mistake in the files, or a certificate that others would refuse;
    CERTIFICATE_EXPIRED for a certificate that isn't valid today.
    """

    def __init__(self, tls: Tls, hosts: Collection[str]) -> None:
        """`hosts`: the hosts by which others dial this node."""
        self._tls, self._hosts = tls, hosts
        self._pem, (self.data_port, self.to_data_ports) = self._read()  # the files as they were read last
        self._served, self.channel = self._pem, _of_channel(self._pem)

    def server(self) -> grpc.ServerCredentials:
        """Credentials of the server, which refuses clients without a certificate of the authority."""
        return grpc.dynamic_ssl_server_credentials(_of_server(self._pem), self._renewed, True)  # type: ignore[arg-type]  # the stub lacks the None

    def expiry(self) -> dict[str, float]:
        """By file, ca and cert: the time, in seconds since 1970, when its first certificate expires."""
        return {"ca": first_expiry(self._pem.ca), "cert": first_expiry(self._pem.cert)}

    def renew(self) -> bool:
        """Read the files again. Returns True if they have changed. Connections made from now on use them.

        Raises MinkaError, as the class does; the old credentials then stay in force.
        """
        if tls_files.content(self._tls) == self._pem:
            return False
        pem, contexts = self._read()
        self._pem, self.channel = pem, _of_channel(pem)
        self.data_port, self.to_data_ports = contexts
        return True

    def _read(self) -> tuple[Pem, tuple[ssl.SSLContext, ssl.SSLContext]]:
        """The files' content, and the contexts of server and client: a handshake between them has succeeded."""
        pem = tls_files.read(self._tls)
        server, client = tls_files.server_context(self._tls, pem), tls_files.client_context(self._tls, pem)
        for host in self._hosts:
            if (found := refusal(server, client, host)) is None:
                continue
            if found.of_dates:
                text = f"tls.cert: {self._tls.cert}: its authority's, in {self._tls.ca} or beside it: {found.words}"
                raise MinkaError(Code.CERTIFICATE_EXPIRED, text)
            raise MinkaError(Code.INVALID_CONFIG, f"tls.cert: {self._tls.cert}: {found.words}: {remedy(found)}")
        return pem, (server, client)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The configuration of the next handshake; None: keep the last configuration. A thread of gRPC calls this
        before each handshake.
        """
        if self._served is self._pem:
            return None
        self._served = self._pem
        return _of_server(self._served)


def _of_channel(pem: Pem) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def _of_server(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)
