"""Mutual TLS on real clusters, with certificates made by the commands of docs/operations.md."""

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from minka import Client, Tls
from minka.admin.control import Control
from minka.certificates import first_expiry
from minka.duties import Client as Duties
from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.testing.loopback_ports import LOOPBACK, free_addresses
from minka.v1.admin_pb2 import GetTableRequest
from minka.v1.admin_pb2_grpc import MetadataStub
from minka.wire.data_port import PREFACE, Hello, Kind, encode_hello
from tests.cluster.certificates import make_certificates, section
from tests.cluster.cluster import QUICK, create_keyspace, eventually, wait_ended, wait_settled
from tests.cluster.shards import running
from tests.programs import program

ROWS = {b"key-%d" % i: b"value-%d" % i for i in range(300)}
OTHER_AUTHORITY = "from another authority"
HUNG_UP = "perhaps TLS is on at the other side only, or it does not accept this side's certificate"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """The cluster's certificates."""
    return make_certificates(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates of an authority that the cluster does not know."""
    return make_certificates(tmp_path_factory.mktemp("tls") / "strange")


@pytest.fixture(scope="module")
def cluster(tls: Tls) -> Iterator[LocalCluster]:
    """A cluster with TLS: three nodes that have founded it, and one that has joined."""
    with LocalCluster(3, config=QUICK | section(tls)) as made:
        made.add("ephesus")
        yield made


def minkactl(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minkactl", *arguments]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=30, check=False)


def refusal(ask: Callable[[], object]) -> str:
    """Call `ask`, which must raise UNREACHABLE; returns the error's message."""
    with pytest.raises(MinkaError) as caught:
        ask()
    assert caught.value.code is Code.UNREACHABLE
    return caught.value.message


def test_everything_works_with_tls(cluster: LocalCluster, tls: Tls, tmp_path: Path) -> None:
    with Control(cluster.endpoints, tls=tls) as control:
        wait_settled(control, live=4)
        create_keyspace(control, "flights", 8, live=4)
        with Client(cluster.endpoints, keyspace="flights", tls=tls) as client:
            client.put_many(ROWS)
            # Nodes send checkpoints and logs to each other.
            plan = control.plan_reassign(to=["athens", "ephesus"], keyspaces=["flights"])
            wait_ended(control, control.apply_plan(plan, "test").id)
            table = wait_settled(control, live=4)
            flights = next(keyspace.id for keyspace in table.keyspaces if keyspace.name == "flights")
            leaders = {partition.leader for partition in table.partitions if partition.keyspace_id == flights}
            assert leaders == {"athens", "ephesus"}
            assert client.get_many(list(ROWS)) == ROWS
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    files = ("--tls-ca", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key))
    assert minkactl("context", "set", "prod", ",".join(cluster.endpoints), *files, **environ).returncode == 0
    assert minkactl("status", **environ).returncode == 0
    assert minkactl("kv", "get", "flights", "key-7", **environ).stdout == "value-7"
    assert minkactl("kv", "count", "flights", "-o", "name", **environ).returncode == 0


def test_duties_and_their_payloads_with_tls(cluster: LocalCluster, tls: Tls, tmp_path: Path) -> None:
    with Duties(cluster.endpoints, tls=tls) as duties, running(cluster, tmp_path) as shards:
        duties.create_pallet("feeds")
        duties.create("feeds", "bbc", b"https://")
        assert duties.get("feeds", "bbc").duty.payload == b"https://"
        shard = shards.start("s", "feeds", tls=[str(tls.ca), str(tls.cert), str(tls.key)])
        shards.wait_placed({"feeds/bbc"}, [shard])
        assert shard.calls("attach") == [["feeds/bbc", 1, "https://"]]
    with pytest.raises(urllib.error.HTTPError, match="404"):  # REST has no TLS, so this cluster doesn't serve REST
        urllib.request.urlopen(f"http://{cluster.node('athens').http_address}/v1/pallets", timeout=5)


def test_clients_without_the_right_certificate_are_refused(cluster: LocalCluster, tls: Tls, strange: Tls) -> None:
    endpoint = cluster.node("athens").address
    half = Tls(tls.ca, strange.cert, strange.key)
    for client_tls, reason in ((None, HUNG_UP), (half, HUNG_UP), (strange, OTHER_AUTHORITY)):
        with Control([endpoint], tls=client_tls) as control:
            assert reason in refusal(control.table)
        with Client([endpoint], keyspace="flights", tls=client_tls) as client:
            assert reason in refusal(lambda client=client: client.get("key-7"))  # type: ignore[misc]
    without = grpc.ssl_channel_credentials(Path(tls.ca).read_bytes())
    with grpc.secure_channel(endpoint, without) as channel, pytest.raises(grpc.RpcError) as caught:
        MetadataStub(channel).GetTable(GetTableRequest(), timeout=5)
    assert "Socket closed" in str(caught.value)
    shown = minkactl("status", "--endpoints", endpoint)
    assert shown.returncode == 3
    assert HUNG_UP in shown.stderr


def test_the_data_port_takes_the_right_certificates_only(cluster: LocalCluster, tls: Tls, strange: Tls) -> None:
    address = cluster.node("athens").data_address
    right = ssl.create_default_context(cafile=tls.ca)
    right.load_cert_chain(tls.cert, tls.key)
    assert b"INVALID_ARGUMENT" in said_on_data_port(address, right)
    stranger = ssl.create_default_context(cafile=tls.ca)
    stranger.load_cert_chain(strange.cert, strange.key)
    for refused in (None, ssl.create_default_context(cafile=tls.ca), stranger):
        assert b"INVALID_ARGUMENT" not in said_on_data_port(address, refused)


def said_on_data_port(address: str, context: ssl.SSLContext | None) -> bytes:
    """Send the data port a hello that it refuses. Returns the port's answer; b"" if the port ends the connection before
    it reads the hello.
    """
    hello = encode_hello(Hello("nonsense", "", ""))
    sent = PREFACE + (len(hello) + 1).to_bytes(4, "big") + Kind.DATA.to_bytes() + hello
    host, _, port = address.rpartition(":")
    try:
        plain = socket.create_connection((host, int(port)), timeout=5)
        with context.wrap_socket(plain, server_hostname=host) if context is not None else plain as connection:
            connection.sendall(sent)
            answer = b""
            while data := connection.recv(4096):
                answer += data
            return answer
    except (ssl.SSLError, ConnectionError):
        return b""


def test_unusable_files_are_named_at_once(tls: Tls, strange: Tls, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.key"
    arguments = f"pkey -in {tls.key} -aes128 -passout pass:secret -out {encrypted}".split()
    subprocess.run([program("openssl"), *arguments], check=True, timeout=30)
    for wrong, reason in (
        (Tls(tls.ca, tls.cert, strange.key), f"tls.key: {strange.key}: is not the key of {tls.cert}"),
        (Tls(tls.ca, tls.cert, encrypted), f"tls.key: {encrypted}: holds no private key in PEM form, or an encrypted"),
        (Tls(tls.key, tls.cert, tls.key), f"tls.ca: {tls.key}: holds no certificate in PEM form"),
        (Tls(tls.ca, tmp_path / "none", tls.key), f"tls.cert: {tmp_path}/none: No such file or directory"),
    ):
        for make in (Control, Client):
            with pytest.raises(MinkaError) as caught:
                make([f"{LOOPBACK}:1"], tls=wrong)
            assert caught.value.code is Code.INVALID_CONFIG
            assert reason in caught.value.message


def test_a_client_with_tls_is_told_that_the_node_has_none(tls: Tls) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    (address,) = free_addresses(1)
    server.add_insecure_port(address)
    server.start()
    with Control([address], tls=tls) as control:
        assert "TLS is on at this side only" in refusal(control.table)
    server.stop(None).wait()


def install(source: Tls, target: Tls) -> Tls:
    """Replace the target's files with copies of the source's."""
    for name in ("ca", "cert", "key"):
        shutil.copy(getattr(source, name), getattr(target, name))
    return target


def test_a_node_of_another_authority_does_not_join(
    cluster: LocalCluster, tls: Tls, strange: Tls, tmp_path: Path
) -> None:
    live = install(strange, Tls(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"))
    node = cluster.add("gortyn", config=section(live), ready=False)
    eventually("the reason in its log", lambda: OTHER_AUTHORITY in node.log.read_text())
    cluster.kill("gortyn")
    # From now on, gortyn trusts the cluster's authority, but the cluster doesn't trust gortyn's authority.
    Path(live.ca).write_bytes(Path(tls.ca).read_bytes() + Path(strange.ca).read_bytes())
    cluster.restart("gortyn", ready=False)
    eventually("the reason in its log", lambda: HUNG_UP in node.log.read_text())
    with Control([cluster.node("athens").address], tls=tls) as control:
        assert "gortyn" not in {row.id for row in control.table().nodes}
        install(tls, live)
        cluster.signal("gortyn", signal.SIGHUP)
        eventually("gortyn has joined", lambda: "gortyn" in {row.id for row in control.table().nodes})
    cluster.kill("gortyn")


def expired(tls: Tls, folder: Path) -> Tls:
    """Make a certificate like that of `tls`, from the same authority, but already expired."""
    made = Tls(tls.ca, folder / "expired.pem", tls.key)
    authority = Path(tls.ca)
    command: list[str | Path] = [
        program("openssl"),
        "x509",
        "-req",
        "-in",
        Path(tls.cert).with_suffix(".csr"),
        "-copy_extensions",
        "copy",
    ]
    command += ["-CA", authority, "-CAkey", authority.with_suffix(".key"), "-days", "-1", "-out", str(made.cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return made


def validated(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minkad", "--config", str(config), "--validate-config"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_certificate_that_others_would_refuse_is_not_taken(tls: Tls, strange: Tls, tmp_path: Path) -> None:
    live = install(tls, Tls(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"))
    over, stranger = expired(tls, tmp_path), Tls(tls.ca, strange.cert, strange.key)
    with LocalCluster(1, config=QUICK | section(live)) as cluster:
        node, config = cluster.node("athens"), cluster.node("athens").config_path
        before = served(node.address, tls)
        for wrong, why, status in (
            (over, " UTC only", 1),
            (stranger, "no authority in tls.ca issued", 2),
        ):
            install(wrong, live)
            reload(cluster, "configuration not reloaded")
            assert why in node.log.read_text()
            assert served(node.address, tls) == served(node.data_address, tls) == before
            ended = validated(config)
            assert (ended.returncode, why in ended.stderr) == (status, True), ended.stderr
        install(tls, live)
        reload(cluster, "configuration reloaded")
        assert validated(config).returncode == 0
        cluster.kill("athens")
        install(over, live)
        cluster.restart("athens", ready=False)
        assert node.process is not None
        assert node.process.wait(30) == 1, "systemd starts it again"
        assert f"CERTIFICATE_EXPIRED: tls.cert: {live.cert}: was valid until " in node.log.read_text()


def served(address: str, tls: Tls) -> bytes:
    """Connect to the address, and return the node's certificate in DER form."""
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=5)
    with context.wrap_socket(plain, server_hostname=host) as connection:
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return found


def is_served(address: str, tls: Tls, certificate: bytes) -> bool:
    """True if the node at this address presents this certificate."""
    with contextlib.suppress(ssl.SSLError):
        return served(address, tls) == certificate
    return False


def expiry(cluster: LocalCluster) -> dict[str, float]:
    """Return the times (seconds since 1970) at which the certificates of athens expire, from its metrics."""
    with urllib.request.urlopen(f"http://{cluster.node('athens').http_address}/metrics", timeout=5) as response:
        text = response.read().decode()
    found = re.findall(r'^minka_tls_certificate_expiry_timestamp_seconds\{file="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {file: float(when) for file, when in found}


def reload(cluster: LocalCluster, line: str) -> None:
    """Send SIGHUP to all nodes, and wait until each of them has logged this line once more."""
    before = {name: cluster.log(name).read_text().count(line) for name in cluster.nodes}
    for name in cluster.nodes:
        cluster.signal(name, signal.SIGHUP)
    for name in cluster.nodes:
        eventually(f"{name}: {line}", lambda name=name: cluster.log(name).read_text().count(line) > before[name])  # type: ignore[misc]


def test_certificates_and_authority_are_renewed_without_a_restart(tls: Tls, strange: Tls, tmp_path: Path) -> None:
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    install(tls, Tls(ca, cert, key))
    renewed = "tls: other certificates in the files"
    with LocalCluster(3, config=QUICK | section(Tls(ca, cert, key))) as cluster:
        address = cluster.node("athens").address
        with Client(cluster.endpoints, keyspace="flights", tls=tls) as client:
            with Control(cluster.endpoints, tls=tls) as control:
                create_keyspace(control, "flights", 6, live=3)
            client.put_many(ROWS)
            old, before = served(address, tls), expiry(cluster)
            assert before == {"ca": first_expiry(ca.read_bytes()), "cert": first_expiry(cert.read_bytes())}
            cert.write_text("what an editor left half done")
            reload(cluster, "configuration not reloaded")
            assert "holds no certificate" in cluster.log("athens").read_text()
            assert served(address, tls) == old
            shutil.copy(tls.cert, cert)
            key.chmod(0o644)
            reload(cluster, "configuration not reloaded")
            assert f"everybody may read it (mode 0644): chmod 600 {key}" in cluster.log("athens").read_text()
            key.chmod(0o600)
            ca.write_bytes(Path(tls.ca).read_bytes() + Path(strange.ca).read_bytes())
            reload(cluster, renewed)
            shutil.copy(strange.cert, cert)
            shutil.copy(strange.key, key)
            reload(cluster, renewed)
            assert expiry(cluster)["cert"] == first_expiry(Path(strange.cert).read_bytes()) >= before["cert"]
            new = ssl.PEM_cert_to_DER_cert(Path(strange.cert).read_text())
            assert served(address, strange) == new != old
            eventually("the data port has it", lambda: is_served(cluster.node("athens").data_address, strange, new))
            shutil.copy(strange.ca, ca)
            reload(cluster, renewed)
            assert client.get_many(list(ROWS)) == ROWS, "open connections stay"
        with Control([address], tls=tls) as control:
            assert OTHER_AUTHORITY in refusal(control.table)
        # cyrene comes back only if the other nodes present certificates of the new authority, and accept cyrene's.
        cluster.kill("cyrene")
        cluster.restart("cyrene")
        with Control(cluster.endpoints, tls=strange) as control:
            wait_settled(control, live=3)
        with Client(cluster.endpoints, keyspace="flights", tls=strange) as client:
            assert client.get_many(list(ROWS)) == ROWS
