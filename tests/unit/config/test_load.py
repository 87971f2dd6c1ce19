"""Loading a configuration: defaults, types, origins, the environment. Each mistake is reported with its line."""

from dataclasses import replace
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minkad.config import RELOADABLE, Config, apply_reload, describe, diff, load, variable
from minkad.config.schema import KEYS, Membership, Migrations
from minkad.config.yaml_values import Peer

GOOD = """\
node:
  id: athens
data_dir: /var/lib/minka
cluster:
  bootstrap:
    - {id: athens, address: 127.0.0.1:7400}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "minkad.yaml"
    path.write_text(text)
    return path


def mistakes(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """Load the text as a file; returns the reported mistakes, without the folder's name."""
    with pytest.raises(MinkaError) as caught:
        load(write(tmp_path, text), environ or {})
    assert caught.value.code is Code.INVALID_CONFIG
    return [line.removeprefix(f"{tmp_path}/") for line in caught.value.message.splitlines()]


def test_a_key_that_the_file_lacks_has_its_default(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD), {})
    assert config.node.id == "athens"
    assert config.data_dir == Path("/var/lib/minka")
    assert config.cluster.bootstrap == (Peer("athens", "127.0.0.1:7400"),)
    assert config.listen.grpc == "127.0.0.1:7400"
    assert config.membership == Membership(200, 600, 800)
    assert config.coordinator.voters == 3
    assert (config.migrations.per_node, config.migrations.cluster) == (1, 32)
    assert config.log.format == "human"


def test_the_environment_overrides_the_file_and_is_named_as_the_origin(tmp_path: Path) -> None:
    environ = {
        "MINKAD_NODE_ID": "byzantium",
        "MINKAD_MEMBERSHIP_CLEARANCE_MS": "450",
        "MINKAD_DATA_DIR": "/srv/minka",
        "MINKAD_CLUSTER_JOIN": '[127.0.0.1:7400, "[::1]:7500"]',
        "MINKAD_CLUSTER_BOOTSTRAP": "[]",
        "PATH": "/bin",
    }
    config = load(write(tmp_path, GOOD), environ)
    assert config.node.id == "byzantium"
    assert config.membership.clearance_ms == 450
    assert config.data_dir == Path("/srv/minka")
    assert config.cluster.bootstrap == ()
    assert config.cluster.join == ("127.0.0.1:7400", "[::1]:7500")
    assert config.origins["node.id"] == "MINKAD_NODE_ID", "the variable overrides the value in the file"


def test_every_key_has_a_variable_of_its_own() -> None:
    assert len({variable(key) for key in KEYS}) == len(KEYS)
    assert variable("membership.clearance_ms") == "MINKAD_MEMBERSHIP_CLEARANCE_MS"


def test_the_environment_alone_can_configure(tmp_path: Path) -> None:
    environ = {
        "MINKAD_NODE_ID": "athens",
        "MINKAD_DATA_DIR": "/srv/minka",
        "MINKAD_CLUSTER_BOOTSTRAP": "[{id: athens, address: 127.0.0.1:7400}]",
    }
    assert load(write(tmp_path, ""), environ).cluster.bootstrap[0].id == "athens"


def test_variables_that_kubernetes_injects_are_ignored(tmp_path: Path) -> None:
    load(write(tmp_path, GOOD), {"MINKAD_PORT": "tcp://10.0.0.1:7400", "MINKAD_SERVICE_HOST": "10.0.0.1"})


def test_all_mistakes_are_reported_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = """\
node: {id: Athens}
data_dir: data
membership:
  clearance_ms: "1000"
  clerance_ms: 7
cluster:
  bootstrap:
    - {id: athens, address: 127.0.0.1}
    - {id: byzantium}
clearance_ms: 4
"""
    found = mistakes(tmp_path, text, {"MINKAD_LOG_LEVEL": "loud", "MINKAD_LOG_LEVLE": "info"})
    rule = "must have 1 to 63 characters of a-z, 0-9, dot and dash, beginning with a letter or digit"
    host_port = "must be host:port or [IPv6]:port"
    assert found == [
        f"minkad.yaml:1: node.id: {rule}, not 'Athens'",
        "minkad.yaml:2: data_dir: must be an absolute path, not 'data'",
        'minkad.yaml:4: membership.clearance_ms: must be a whole number from 50 to 300000, not "1000"',
        "minkad.yaml:5: membership.clerance_ms: unknown key; did you mean membership.clearance_ms?",
        f"minkad.yaml:8: cluster.bootstrap: item 1: address: {host_port}, not '127.0.0.1': the port is missing",
        "minkad.yaml:9: cluster.bootstrap: item 2: address: missing",
        "minkad.yaml:10: clearance_ms: unknown key; did you mean membership.clearance_ms?",
        "MINKAD_LOG_LEVEL: log.level: must be one of debug, info, warning, error, not 'loud'",
        "MINKAD_LOG_LEVLE: unknown variable; did you mean MINKAD_LOG_LEVEL?",
    ]


def test_the_error_about_a_missing_key_names_key_and_variable(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "cluster: {join: [h:1]}") == [
        "minkad.yaml: node.id: required, here or as MINKAD_NODE_ID",
        "minkad.yaml: data_dir: required, here or as MINKAD_DATA_DIR",
    ]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            "listen: {grpc: 127.0.0.1:0}",
            "7: listen.grpc: must be host:port or [IPv6]:port, not '127.0.0.1:0': the port",
        ),
        ("listen: {grpc: '::1:7400'}", "an IPv6 address needs brackets"),
        ("listen: {grpc: '[::1]'}", "the port must be from 1 to 65535"),
        ("listen: {grpc: '[::g]:7400'}", "7: listen.grpc: must be host:port or [IPv6]:port, not '[::g]:7400'"),
        ("listen: {grpc: 127.0.0.256:1}", "Octet 256"),
        ("listen: {grpc: ':7400'}", "the host is missing"),
        ("listen: {grpc: 'a b:7400'}", "the host is not a name or address"),
        ("listen: 7400", "7: listen: must be a mapping of keys"),
        ("listen: {http: 127.0.0.1:7400}", "7: listen.http: must differ from listen.grpc"),
        ("listen: {data: 127.0.0.1:7400}", "7: listen.data: must differ from listen.grpc (127.0.0.1:7400)"),
        ("listen: {http: 127.0.0.1:7402}", "7: listen.data: must differ from listen.http (127.0.0.1:7402)"),
        (
            "listen: {grpc: 127.0.0.1:65534}",
            "7: listen.data: required: the default, the port of listen.grpc",
        ),
        ("advertise: {grpc: 0.0.0.0:7400}", "7: advertise.grpc: must be an address that other nodes can dial"),
        ("log: {level: no}", "must be one of debug, info, warning, error, not 'no'"),
        ("log: {level: ~}", "7: log.level: has no value; remove the line to use the default"),
        ("log: {level: [info]}", "7: log.level: must be one value, not a list"),
        ("log:\n  level: info\n  level: debug", "9: log.level: given twice, first in line 8"),
        ("log: {[a]: 1}", "7: a key must be a word"),
        ("log: &a [*a]", "7: log: must be a mapping of keys"),
        ("migrations: {per_node: 0}", "7: migrations.per_node: must be a whole number from 1 to 1000, not 0"),
        ("migrations: {per_node: 010}", "must be a whole number from 1 to 1000, not 010"),
        ("migrations: {per_node: 1.5}", "must be a whole number from 1 to 1000, not 1.5"),
        ("migrations: {per_node: " + "9" * 5000 + "}", "not " + "9" * 77 + "..."),
        ("migrations: {per_node: 33}", "7: migrations.per_node: must not be above migrations.cluster (32), not 33"),
        ("coordinator: {voters: 4}", "7: coordinator.voters: must be odd, not 4"),
        ("coordinator: {election_ticks: 5, heartbeat_ticks: 2}", "must be at least 3 × heartbeat_ticks (2), not 5"),
        ("membership: {clearance_ms: 1300}", "7: membership.failure_timeout_ms: must be more than 1530 "),
        (
            "membership: {heartbeat_interval_ms: 500, failure_timeout_ms: 2000}",
            "must be less than half of clearance_ms",
        ),
        ("node: {zone: a}", "7: node: given twice, first in line 1"),
    ],
)
def test_the_error_names_the_line_of_the_mistake(tmp_path: Path, extra: str, expected: str) -> None:
    (found,) = mistakes(tmp_path, GOOD + extra)
    assert found.startswith("minkad.yaml:")
    assert expected in found


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("{}", "node.id (athens) is not in cluster.bootstrap, and cluster.join names no node"),
        ("{bootstrap: [{id: byzantium, address: b:1}]}", "3: cluster.bootstrap: node.id (athens) is not in"),
        ("{bootstrap: [{id: athens, address: b:1}, {id: athens, address: b:2}]}", "listed twice: athens"),
        ("{bootstrap: [{id: athens, address: b:1}, {id: b, address: b:1}]}", "listed twice: b:1"),
        ("{bootstrap: [{id: athens, address: b:1, port: 3}]}", "item 1: port: unknown key; an item has id and address"),
        ("{bootstrap: [{id: athens, id: b, address: b:1}]}", "item 1: id: given twice"),
        ("{bootstrap: [athens]}", "item 1: must be {id: NODE, address: HOST:PORT}"),
        ("{bootstrap: athens}", "3: cluster.bootstrap: must be a list; an empty one is []"),
        ("{join: ['0.0.0.0:1']}", "item 1: must be an address that other nodes can dial"),
        ("{join: [" + "h:1," * 1001 + "]}", "must have at most 1000 items, not 1001"),
    ],
)
def test_a_mistake_in_the_cluster_section(tmp_path: Path, cluster: str, expected: str) -> None:
    (found,) = mistakes(tmp_path, f"node: {{id: athens}}\ndata_dir: /d\ncluster: {cluster}\n")
    assert expected in found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"node: {id: athens\ndata_dir: [", "minkad.yaml:2: not YAML: "),
        (b"node: {id: a}\n---\nnode: {id: b}\n", "minkad.yaml:2: not YAML: "),
        (b"node:\n  id: \xff\n", "minkad.yaml:2: not text: "),
        (b"- node\n", "minkad.yaml:1: must be a mapping of sections"),
        (b"[" * 100_000, "minkad.yaml: nested too deeply"),
        (b"#" * (2 << 20), "minkad.yaml: larger than 1 MiB"),
    ],
)
def test_files_that_are_not_configurations_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "minkad.yaml"
    path.write_bytes(content)
    with pytest.raises(MinkaError) as caught:
        load(path, {})
    assert caught.value.message.removeprefix(f"{tmp_path}/").startswith(expected)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MinkaError, match=r"none\.yaml: No such file or directory"):
        load(tmp_path / "none.yaml", {})


def test_a_list_in_the_environment_must_be_yaml(tmp_path: Path) -> None:
    environ = {"MINKAD_CLUSTER_JOIN": "[a:1", "MINKAD_CLUSTER_BOOTSTRAP": "[{id: A, address: b:1}]"}
    found = mistakes(tmp_path, GOOD, environ)
    assert found[0].startswith("MINKAD_CLUSTER_BOOTSTRAP: cluster.bootstrap: item 1: id: must have 1 to 63")
    assert found[1].startswith("MINKAD_CLUSTER_JOIN: cluster.join: not YAML: ")


def test_text_in_the_environment_is_taken_as_written(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD.replace("id: athens", "id: athens\n  zone: no", 1)), {}).node.zone == "no"


def test_advertised_addresses(tmp_path: Path) -> None:
    everywhere = GOOD + 'listen: {grpc: "0.0.0.0:7400", http: "[::]:7401"}\n'
    config = load(write(tmp_path, everywhere), {})
    assert config.grpc_address == "127.0.0.1:7400", "the address of the node's entry in cluster.bootstrap"
    assert config.http_address == "127.0.0.1:7401", "the host of grpc_address, with the HTTP port"

    environ = {"MINKAD_ADVERTISE_GRPC": "[::1]:9", "MINKAD_ADVERTISE_HTTP": "h:8"}
    config = load(write(tmp_path, everywhere), environ)
    assert (config.grpc_address, config.http_address) == ("[::1]:9", "h:8")

    assert (config.data_listen, config.data_address) == ("0.0.0.0:7402", "[::1]:7402"), "derived from listen.grpc"
    config = load(write(tmp_path, everywhere), environ | {"MINKAD_LISTEN_DATA": "[::]:7"})
    assert (config.data_listen, config.data_address) == ("[::]:7", "[::1]:7")
    config = load(write(tmp_path, everywhere), environ | {"MINKAD_LISTEN_DATA": "10.0.0.1:7"})
    assert (config.data_listen, config.data_address) == ("10.0.0.1:7", "10.0.0.1:7")
    config = load(write(tmp_path, everywhere), environ | {"MINKAD_ADVERTISE_DATA": "h:6"})
    assert (config.data_listen, config.data_address) == ("0.0.0.0:7402", "h:6")

    joins = 'node: {id: cyrene}\ndata_dir: /d\ncluster: {join: [a:1]}\nlisten: {grpc: "[::]:7400"}\n'
    (found,) = mistakes(tmp_path, joins)
    assert found.startswith("minkad.yaml:4: advertise.grpc: required, since listen.grpc ([::]:7400) is every interface")


def test_tls_is_three_files_or_none(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD), {}).certificates is None
    assert mistakes(tmp_path, GOOD + "tls:\n  cert: /c.pem\n") == [
        "minkad.yaml:8: tls.ca: required, since tls.cert is given: all three or none",
        "minkad.yaml:8: tls.key: required, since tls.cert is given: all three or none",
    ]
    (found,) = mistakes(tmp_path, GOOD + "tls: {ca: ca.pem}\n")
    assert found == "minkad.yaml:7: tls.ca: must be an absolute path, not 'ca.pem'"


def test_the_files_of_tls_are_read_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n")
    (tmp_path / "key.pem").chmod(0o600)
    files = f"tls:\n  ca: {tmp_path}/none.pem\n  cert: {tmp_path}\n  key: {tmp_path}/key.pem\n"
    assert mistakes(tmp_path, GOOD + files, {"MINKAD_TLS_CERT": f"{tmp_path}/key.pem"}) == [
        f"minkad.yaml:8: tls.ca: {tmp_path}/none.pem: No such file or directory",
        f"MINKAD_TLS_CERT: tls.cert: {tmp_path}/key.pem: holds no certificate in PEM form",
    ]


def loaded(tmp_path: Path, **environ: str) -> Config:
    return load(write(tmp_path, GOOD), environ)


def test_diff_says_what_a_reload_changes_and_what_needs_a_restart(tmp_path: Path) -> None:
    old = loaded(tmp_path)
    new = loaded(tmp_path, MINKAD_LOG_LEVEL="debug", MINKAD_NODE_ZONE="east", MINKAD_CLUSTER_JOIN='["[::1]:1", b:2]')
    new = replace(new, migrations=Migrations(per_node=5))
    assert diff(old, old) == ([], [])
    assert diff(old, new) == (
        ["migrations.per_node: 1 → 5", "log.level: info → debug"],
        ['node.zone: "" → east', 'cluster.join: [] → ["[::1]:1", b:2]'],
    )
    in_force = apply_reload(old, new)
    assert (in_force.log.level, in_force.migrations.per_node, in_force.node.zone) == ("debug", 5, "")
    assert diff(in_force, new) == ([], diff(old, new)[1])
    assert in_force.origins["log.level"] == "MINKAD_LOG_LEVEL"
    assert in_force.origins["node.zone"] == "default"


def test_keys_that_a_reload_may_change() -> None:
    assert sorted(RELOADABLE) == [
        "limits.replicas_per_node",
        "loads.abandoned_after_s",
        "log.format",
        "log.level",
        "migrations.cluster",
        "migrations.per_node",
        "migrations.stall_timeout_s",
        "ranges.merge_after_s",
    ]


def test_describe_gives_every_key_with_its_origin(tmp_path: Path) -> None:
    config = loaded(tmp_path, MINKAD_LOG_LEVEL="debug")
    lines = describe(config)
    assert [line.partition(":")[0] for line in lines] == list(KEYS)
    parts = {line.partition(":")[0]: [part.strip() for part in line.split("  # ")] for line in lines}
    assert parts["log.level"] == ["log.level: debug", "MINKAD_LOG_LEVEL"]
    assert parts["node.id"] == ["node.id: athens", f"{tmp_path}/minkad.yaml:2"]
    assert parts["node.zone"] == ['node.zone: ""', "default"]
    assert parts["cluster.bootstrap"][0] == "cluster.bootstrap: [{id: athens, address: 127.0.0.1:7400}]"


@pytest.mark.parametrize(
    ("listen", "served"),
    [
        ("{http: '127.0.0.1:7401'}", True),
        ("{http: '[::1]:7401'}", True),
        ("{http: 'localhost:7401'}", True),
        ("{http: '0.0.0.0:7401'}", False),
        ("{http: '10.0.0.1:7401'}", False),
        ("{http: '0.0.0.0:7401', rest: true}", True),
        ("{http: '127.0.0.1:7401', rest: false}", False),
    ],
)
def test_rest_is_served_only_to_this_machine_by_default(tmp_path: Path, listen: str, served: bool) -> None:
    assert load(write(tmp_path, f"{GOOD}\nlisten: {listen}\n"), {}).serves_rest is served
