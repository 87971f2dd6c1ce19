"""Private keys that others may read, and certificates that can't work, are refused. Dates are read as by OpenSSL."""

import base64
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from minka import InvalidArgument, Tls, tls_files
from minka.certificates import first_expiry
from minka.errors import Code
from minkad.config import load
from minkad.rpc.credentials import Credentials
from tests.programs import program

HOST = "athens.example.net"


def make(folder: Path, name: str = "own", days: int = 30, *more: str) -> Tls:
    """A certificate that is its own authority. It is for HOST unless `more` says otherwise."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", str(days), "-subj", f"/CN={HOST}", "-keyout", str(key), "-out", str(cert), *more]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return Tls(cert, cert, key)


def issued(authority: Tls, name: str, dates: Sequence[str] = (), extensions: str = f"subjectAltName=DNS:{HOST}") -> Tls:
    """Make a certificate by this authority. `dates` are options of `openssl ca`; the default is 30 days from now."""
    folder = Path(authority.ca).parent / f"{name}.made"
    folder.mkdir()
    for file, text in {"index": "", "ext": extensions, "ca.cnf": CA_CONFIG.format(folder=folder)}.items():
        (folder / file).write_text(text)
    cert, key, request = folder / "cert.pem", folder / "key.pem", folder / "request.pem"
    asked = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=node"]
    signed: list[str | Path] = ["ca", "-batch", "-notext", "-config", folder / "ca.cnf"]
    signed += ["-cert", authority.cert, "-keyfile", authority.key]
    signed += ["-extfile", folder / "ext", "-in", request, "-out", cert, *(dates or ("-days", "30"))]
    for command in ([*asked, "-keyout", key, "-out", request], signed):
        subprocess.run([program("openssl"), *command], check=True, capture_output=True, timeout=30)
    return Tls(authority.ca, cert, key)


CA_CONFIG = """[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
default_md = sha256
rand_serial = yes
policy = any
[any]
commonName = supplied
"""
OVER = ("-startdate", "20200101000000Z", "-enddate", "20210101000000Z")
NOT_YET = ("-startdate", "20900101000000Z", "-enddate", "20910101000000Z")


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "is NoneType, not str or Path"),
        (5, "is int, not str or Path"),  # open() would take 5 as the number of an open file
        (b"ca.pem", "is bytes, not str or Path"),
        ("ca.pem\0", r"isn't a path: 'ca.pem\x00'"),
        (Path("ca.pem\0"), r"isn't a path: PosixPath('ca.pem\x00')"),
        ("\ud800", r"isn't a path: '\ud800'"),
    ],
)
def test_anything_but_a_path_is_refused(name: str, given: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Tls(**{"ca": "ca.pem", "cert": "own.pem", "key": Path("own.key"), name: given})
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, f"tls.{name} {problem}")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make(tmp_path_factory.mktemp("tls"))


def openssl_says(cert: str | Path) -> float:
    command = [program("openssl"), "x509", "-in", str(cert), "-noout", "-enddate"]
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
def test_a_key_that_others_may_read_is_refused(tls: Tls, tmp_path: Path, mode: int, owner: int, readers: str) -> None:
    if os.geteuid():
        pytest.skip("only root gives files away")
    key = tmp_path / "own.key"
    key.write_bytes(Path(tls.key).read_bytes())
    os.chown(key, owner, owner)
    key.chmod(mode)
    used = Tls(tls.ca, tls.cert, key)
    if not readers:
        assert tls_files.read(used).key
        return
    with pytest.raises(InvalidArgument) as caught:
        tls_files.read(used)
    assert caught.value.code is Code.INVALID_CONFIG
    assert caught.value.message == f"tls.key: {key}: {readers} may read it (mode {mode:04o}): chmod 600 {key}"
    subprocess.run(["chmod", "600", str(key)], check=True)  # the command that the message names
    assert tls_files.read(used).key


def test_a_reload_refuses_a_key_that_all_users_may_read(tls: Tls, tmp_path: Path) -> None:
    key = tmp_path / "own.key"
    key.write_bytes(Path(tls.key).read_bytes())
    key.chmod(0o600)
    credentials = Credentials(Tls(tls.ca, tls.cert, key), [HOST])
    key.chmod(0o644)
    with pytest.raises(InvalidArgument, match="everybody may read it"):
        credentials.renew()
    key.chmod(0o600)
    assert credentials.renew() is False
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize("days", [1, 30, 3650, 20_000, 300_000])  # dates from 2050 on have another form
def test_the_expiry_of_a_certificate_is_read_as_openssl_reads_it(tmp_path: Path, days: int) -> None:
    made = make(tmp_path, "one", days, "-addext", "subjectAltName=" + ",".join(f"DNS:a{i}.example" for i in range(40)))
    assert first_expiry(Path(made.cert).read_bytes()) == openssl_says(made.cert)


def test_the_expiry_is_that_of_the_first_of_several_certificates(tls: Tls, tmp_path: Path) -> None:
    longer, shorter = make(tmp_path, "longer", 400), make(tmp_path, "shorter", 2)
    both = Path(longer.cert).read_bytes() + b"text between them\n" + Path(shorter.cert).read_bytes()
    assert first_expiry(both) == openssl_says(shorter.cert)
    own = issued(longer, "own")
    credentials = Credentials(own, [HOST])
    assert credentials.expiry() == {"ca": openssl_says(longer.cert), "cert": openssl_says(own.cert)}


@pytest.mark.parametrize("content", [b"\x30", b"\x30\x03abc", b"\x30\x82\xff\xff", b"\x30\x80", b""])
def test_files_that_are_not_certificates_are_refused(content: bytes) -> None:
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(content) + b"\n-----END CERTIFICATE-----\n"
    with pytest.raises(ValueError):  # noqa: PT011  # whichever
        first_expiry(pem)
    assert first_expiry(b"nothing in PEM form") == float("inf")


def useless(tls: Tls, kind: str) -> tuple[Tls, str]:
    """Return a certificate that nodes with this authority refuse, and the message, without the file's path."""
    if kind == "expired":
        return issued(tls, kind, OVER), "was valid until 2021-01-01 00:00:00 UTC only"
    if kind == "not yet valid":
        return issued(tls, kind, NOT_YET), "is valid from 2090-01-01 00:00:00 UTC only"
    if kind == "of another authority":
        (folder := Path(tls.ca).parent / "other").mkdir()
        stranger = issued(make(folder), kind)
        return Tls(
            tls.ca, stranger.cert, stranger.key
        ), "unable to get local issuer certificate: no authority in tls.ca"
    if kind == "of an expired authority":
        over = Path(tls.ca).parent / "over.pem"
        again = [program("openssl"), "x509", "-in", tls.ca, "-signkey", tls.key, "-days", "-1", "-out", over]
        subprocess.run(again, check=True, capture_output=True, timeout=30)
        made = issued(tls, kind)
        return Tls(over, made.cert, made.key), f"its authority's, in {over} or beside it: certificate has expired"
    if kind == "without a name":
        made = issued(tls, kind, (), "basicConstraints=CA:FALSE")
        return made, f"Hostname mismatch, certificate is not valid for '{HOST}': name that host in its subjectAltName"
    made = issued(tls, kind, (), f"subjectAltName=DNS:{HOST}\nextendedKeyUsage=serverAuth")
    return made, "unsuitable certificate purpose: a node's needs serverAuth and clientAuth if it states"


KINDS = (
    "expired",
    "not yet valid",
    "of another authority",
    "of an expired authority",
    "without a name",
    "for servers only",
)
OUT_OF_DATE = ("expired", "not yet valid", "of an expired authority")


def configured(folder: Path, tls: Tls, more: str = "") -> Path:
    """The configuration of a node that other nodes dial at HOST."""
    path = folder / "minkad.yaml"
    text = f"node: {{id: athens}}\ndata_dir: {folder}/data\ncluster: {{join: [a:1]}}\n"
    path.write_text(
        f"{text}advertise: {{grpc: {HOST}:7400{more}}}\ntls:\n  ca: {tls.ca}\n  cert: {tls.cert}\n  key: {tls.key}\n"
    )
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_refuses_to_use_a_certificate_that_others_would_refuse(tmp_path: Path, kind: str) -> None:
    own = make(tmp_path)
    good = issued(own, "good")
    wrong, why = useless(own, kind)
    hosts = load(configured(tmp_path, wrong), {}).advertised_hosts
    with pytest.raises(InvalidArgument) as caught:
        Credentials(wrong, hosts)
    assert caught.value.code is (Code.CERTIFICATE_EXPIRED if kind in OUT_OF_DATE else Code.INVALID_CONFIG)
    assert caught.value.message.startswith(f"tls.cert: {wrong.cert}: {why}")
    live = Tls(*(tmp_path / f"live.{name}" for name in ("ca", "cert", "key")))
    install(good, live)
    credentials = Credentials(live, hosts)
    before = credentials.expiry(), credentials.channel, credentials.data_port, credentials.to_data_ports
    install(wrong, live)
    with pytest.raises(InvalidArgument, match=r"tls\.cert: ") as caught:
        credentials.renew()
    assert why.replace(str(wrong.ca), str(live.ca)) in caught.value.message
    assert (credentials.expiry(), credentials.channel, credentials.data_port, credentials.to_data_ports) == before
    install(issued(own, "next"), live)
    assert credentials.renew()


def test_a_nodes_certificate_must_be_valid_for_its_data_port_too(tmp_path: Path) -> None:
    own = make(tmp_path)
    one, both = issued(own, "one"), issued(own, "both", (), f"subjectAltName=DNS:{HOST},IP:10.0.0.7")
    hosts = load(configured(tmp_path, both, ", data: 10.0.0.7:7402"), {}).advertised_hosts
    with pytest.raises(InvalidArgument, match=r"not valid for '10\.0\.0\.7'"):
        Credentials(one, hosts)
    assert Credentials(both, hosts).renew() is False


def test_an_authority_is_renewed_in_three_rounds(tmp_path: Path) -> None:
    (folder := tmp_path / "new").mkdir()
    old, new, both = make(tmp_path), make(folder), tmp_path / "both.pem"  # both authorities have the same name
    both.write_bytes(Path(old.ca).read_bytes() + Path(new.ca).read_bytes())
    before, after = issued(old, "before"), issued(new, "after")
    for round_ in (before, Tls(both, before.cert, before.key), Tls(both, after.cert, after.key), after):
        assert Credentials(round_, [HOST]).renew() is False


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_only_refuses_a_certificate_for_its_dates(tmp_path: Path, kind: str) -> None:
    """A client checks neither the name in its own certificate nor the authority: nodes require no name of a client, and
    they check the authority with their own `ca`.
    """
    wrong, why = useless(make(tmp_path), kind)
    if kind in ("expired", "not yet valid"):
        with pytest.raises(InvalidArgument) as caught:
            tls_files.read(wrong)
        assert caught.value.code is Code.CERTIFICATE_EXPIRED
        assert caught.value.message.startswith(f"tls.cert: {wrong.cert}: {why}")
    else:
        assert tls_files.read(wrong).cert


def test_later_certificates_in_a_file_may_have_expired(tmp_path: Path) -> None:
    """The expired certificate may be superfluous: the other side may find a way to an authority without it."""
    made, over = issued(make(tmp_path), "own"), issued(make(tmp_path, "other"), "over", OVER)
    with Path(made.cert).open("ab") as file:
        file.write(Path(over.cert).read_bytes())
    assert tls_files.read(made).cert == Path(made.cert).read_bytes()


def test_a_reload_accepts_unchanged_files_although_they_have_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = Credentials(make(tmp_path), [HOST])
    year = 365 * 24 * 3600.0
    monkeypatch.setattr(time, "time", lambda: datetime.now(UTC).timestamp() + year)
    assert credentials.renew() is False


def install(source: Tls, target: Tls) -> None:
    for name in ("ca", "cert", "key"):
        shutil.copy(getattr(source, name), getattr(target, name))
