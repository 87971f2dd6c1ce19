"""Certificates made by the commands of docs/operations.md."""

import subprocess
from pathlib import Path

from minka import Tls
from minka.testing.loopback_ports import LOOPBACK
from tests.cluster.runbooks import block
from tests.programs import program


def make_certificates(folder: Path) -> Tls:
    """Run the commands of operations.md that make an authority, and a certificate for 127.0.0.1 from this authority."""
    script = "\n".join(block(f"mkdir {made} && openssl req") for made in ("authority", "athens"))
    names = "DNS:athens.example.net,IP:10.20.0.1"
    assert names in script
    program("openssl")
    folder.mkdir()
    ended = subprocess.run(
        ["sh", "-e", "-c", script.replace(names, f"IP:{LOOPBACK}")],
        cwd=folder, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"is there an openssl of version 3? {ended.stderr}"
    return Tls(folder / "authority/ca.pem", folder / "athens/athens.pem", folder / "athens/athens.key")


def section(tls: Tls) -> dict[str, dict[str, str]]:
    """Return the section of a node's configuration that turns TLS on with these files."""
    return {"tls": {"ca": str(tls.ca), "cert": str(tls.cert), "key": str(tls.key)}}
