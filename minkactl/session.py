"""The common options of one run of minkactl."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minkactl.output import note

if TYPE_CHECKING:
    from minka.admin import Admin
    from minka.admin.control import Control
    from minka.contexts import Endpoints
    from minka.duties import Client

REQUEST_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Session:
    """The common options of this run, and the connection they lead to."""

    endpoints_option: str = ""
    context: str = ""
    timeout_s: float | None = None  # as given with --timeout
    output: str = "table"
    watch_s: float | None = None  # as given with --watch
    debug: bool = False
    quiet: bool = False  # shell completion says nothing
    started: float = field(default_factory=time.monotonic)

    @property
    def request_timeout_s(self) -> float:
        """The time limit of one request, in seconds."""
        return REQUEST_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    def seconds_left(self) -> float | None:
        """The seconds left of --timeout since the command began, for commands that watch; None without --timeout."""
        return None if self.timeout_s is None else self.timeout_s - (time.monotonic() - self.started)

    def endpoints(self) -> "Endpoints":
        """The addresses of nodes, and their TLS. Raises MinkaError for a mistake in the options or in what they
        name."""
        from minka.contexts import resolve

        found = resolve(self.endpoints_option, self.context)
        if found.source == "playground" and not self.quiet:
            note("(using the playground)")
        return found

    @contextmanager
    def control(self) -> "Iterator[Control]":
        """The calls that show a cluster, and those for loads; closed at the end. Raises MinkaError."""
        endpoints = self.endpoints()
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core would write its own lines to stderr
        from minka.admin.control import Control

        with Control(endpoints.addresses, timeout=self.request_timeout_s, tls=endpoints.tls) as control:
            yield control

    @contextmanager
    def admin(self) -> "Iterator[Admin]":
        """The administration of the cluster, for commands that plan or change something; closed at the end. Raises
        MinkaError.
        """
        endpoints = self.endpoints()
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from minka.admin import Admin

        with Admin(endpoints.addresses, timeout=self.request_timeout_s, tls=endpoints.tls) as admin:
            yield admin

    @contextmanager
    def duties(self) -> "Iterator[Client]":
        """A client of the cluster's pallets and duties, closed at the end. Raises MinkaError."""
        endpoints = self.endpoints()
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from minka.duties import Client

        with Client(endpoints.addresses, timeout=self.request_timeout_s, tls=endpoints.tls) as client:
            yield client
