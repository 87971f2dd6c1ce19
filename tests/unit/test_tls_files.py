"""Private keys that others may read are refused; the dates of certificates are read as OpenSSL reads them."""

import base64
import os
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from minka import InvalidArgument, Tls
from minka.errors import Code
from minkad.rpc.certificates import first_expiry
from minkad.rpc.credentials import Credentials


def make(folder: Path, name: str = "own", days: int = 30, *more: str) -> Tls:
    """A certificate that is its own authority."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(days), "-subj", "/CN=athens", "-keyout", str(key), "-out", str(cert), *more]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return Tls(cert, cert, key)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make(tmp_path_factory.mktemp("tls"))


def openssl_says(cert: str | Path) -> float:
    command = ["openssl", "x509", "-in", str(cert), "-noout", "-enddate"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    return datetime.strptime(text.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("mode", "owner", "readers"),
    [
        (0o600, 1000, ""), (0o400, 1000, ""), (0o640, 0, ""), (0o440, 0, ""),
        (0o640, 1000, "its group"), (0o660, 0, "its group"), (0o610, 0, "its group"),
        (0o644, 0, "everybody"), (0o604, 1000, "everybody"), (0o666, 1000, "everybody"),
    ],
)  # fmt: skip
def test_who_may_read_the_key(tls: Tls, tmp_path: Path, mode: int, owner: int, readers: str) -> None:
    if os.geteuid():
        pytest.skip("only root gives files away")
    key = tmp_path / "own.key"
    key.write_bytes(Path(tls.key).read_bytes())
    os.chown(key, owner, owner)
    key.chmod(mode)
    used = Tls(tls.ca, tls.cert, key)
    if not readers:
        assert used.read().key
        return
    with pytest.raises(InvalidArgument) as caught:
        used.read()
    assert caught.value.code is Code.INVALID_CONFIG
    assert caught.value.message == f"tls.key: {key}: {readers} may read it (mode {mode:04o}): chmod 600 {key}"
    subprocess.run(["chmod", "600", str(key)], check=True)  # as the message says
    assert used.read().key


def test_a_reload_refuses_a_key_that_everybody_may_read(tls: Tls, tmp_path: Path) -> None:
    key = tmp_path / "own.key"
    key.write_bytes(Path(tls.key).read_bytes())
    key.chmod(0o600)
    credentials = Credentials(Tls(tls.ca, tls.cert, key))
    key.chmod(0o644)
    with pytest.raises(InvalidArgument, match="everybody may read it"):
        credentials.renew()
    key.chmod(0o600)
    assert credentials.renew() is False
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize("days", [1, 30, 3650, 20_000, 300_000])  # from 2050 on they are written in another form
def test_expiry(tmp_path: Path, days: int) -> None:
    made = make(tmp_path, "one", days, "-addext", "subjectAltName=" + ",".join(f"DNS:a{i}.example" for i in range(40)))
    assert first_expiry(Path(made.cert).read_bytes()) == openssl_says(made.cert)


def test_the_first_of_several_counts(tls: Tls, tmp_path: Path) -> None:
    longer, shorter = make(tmp_path, "longer", 400), make(tmp_path, "shorter", 2)
    both = Path(longer.cert).read_bytes() + b"text between them\n" + Path(shorter.cert).read_bytes()
    assert first_expiry(both) == openssl_says(shorter.cert)
    own = Tls(longer.cert, tls.cert, tls.key)
    credentials = Credentials(own)
    assert credentials.expiry() == {"ca": openssl_says(longer.cert), "cert": openssl_says(tls.cert)}


@pytest.mark.parametrize("content", [b"\x30", b"\x30\x03abc", b"\x30\x82\xff\xff", b"\x30\x80", b""])
def test_what_is_no_certificate(content: bytes) -> None:
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(content) + b"\n-----END CERTIFICATE-----\n"
    with pytest.raises(ValueError):  # noqa: PT011  # whichever
        first_expiry(pem)
    assert first_expiry(b"nothing in PEM form") == float("inf")
