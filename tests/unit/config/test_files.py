"""Statements about the files in configs/ are true."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from minkad.config import RELOADABLE, load
from minkad.config.schema import KEYS, Cluster, Config, Node
from minkad.config.yaml_values import Integer, Peer
from minkad.process import exits
from tests.programs import program

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
SAMPLES = ("athens", "byzantium", "cyrene")


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a systemd tool."""
    return subprocess.run([program(tool), *arguments], check=False, capture_output=True, text=True, timeout=30)


def test_minkad_yaml_has_every_key_with_its_default() -> None:
    config = load(CONFIGS / "minkad.yaml", {})
    missing = [key for key in KEYS if config.origins[key] == "default"]
    assert not missing, "keys that configs/minkad.yaml doesn't have"
    cluster = Cluster(bootstrap=(Peer("athens", "127.0.0.1:7400"),))
    assert config == Config(node=Node("athens"), data_dir=Path("/var/lib/minka"), cluster=cluster)


def test_minkad_yaml_explains_every_key() -> None:
    lines = (CONFIGS / "minkad.yaml").read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"(  )?[a-z_]+:( .|$)", line)]
    bare = [lines[n] for n in keys if not lines[n].endswith(":") and not lines[n - 1].lstrip().startswith("#")]
    assert not bare, "keys without a comment above them"


def comment_above(key: str) -> str:
    """The comment block above a key in configs/minkad.yaml, as one line."""
    section, _, name = key.partition(".")
    before = (CONFIGS / "minkad.yaml").read_text().partition(f"\n{section}:")[2].partition(f"\n  {name}:")[0]
    block: list[str] = []
    for line in reversed(before.split("\n")):
        if not line.startswith("  #"):
            break
        block.insert(0, line.removeprefix("  # "))
    return " ".join(block)


def test_minkad_yaml_gives_the_range_of_every_number() -> None:
    for key, schema in KEYS.items():
        if isinstance(schema.parser, Integer) and key != "node.capacity_bytes":
            said = comment_above(key)
            limits = (schema.parser.least, schema.parser.most)
            assert all(re.search(rf"\b{limit}\b", said) for limit in limits), f"{key}: {limits} not in: {said}"


def test_minkad_yaml_marks_what_a_reload_changes() -> None:
    marked = {key for key in KEYS if "." in key and comment_above(key).endswith("Reload.")}
    assert marked == RELOADABLE


def test_the_sample_configurations_make_one_cluster() -> None:
    configs = [load(CONFIGS / "samples" / f"{name}.yaml", {}) for name in SAMPLES]
    assert [config.node.id for config in configs] == list(SAMPLES)
    assert len({config.cluster for config in configs}) == 1
    assert [(peer.id, peer.address) for peer in configs[0].cluster.bootstrap] == [
        (config.node.id, config.grpc_address) for config in configs
    ]
    listening = [
        address for config in configs for address in (config.listen.grpc, config.listen.http, config.data_listen)
    ]
    assert len(set(listening)) == 9
    assert len({config.data_dir for config in configs}) == 3


def test_the_service_is_hardened() -> None:
    unit = str(CONFIGS / "minkad.service")
    shown = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit)
    overall = re.search(r"Overall exposure level for minkad.service: ([0-9.]+)", shown.stdout)
    assert overall, shown.stdout + shown.stderr
    assert float(overall[1]) <= 2.0, shown.stdout
    assert shown.returncode == 0, shown.stderr


def test_the_service_is_well_formed(tmp_path: Path) -> None:
    unit = (CONFIGS / "minkad.service").read_text()
    # systemd-analyze complains about a program that doesn't exist, so the copy that it verifies names another program.
    assert unit.count("/opt/minka/bin/minkad") == 1
    copy = tmp_path / "minkad.service"
    copy.write_text(unit.replace("/opt/minka/bin/minkad", "/bin/true"))
    shown = run("systemd-analyze", "verify", "--man=no", str(copy))
    complaints = [line for line in shown.stderr.splitlines() if "minkad.service" in line]
    assert (shown.returncode, complaints) == (0, [])


def test_the_service_waits_for_ready_and_reloads_by_signal() -> None:
    unit = (CONFIGS / "minkad.service").read_text().splitlines()
    for line in ("Type=notify", "ExecReload=/bin/kill -HUP $MAINPID", "User=minka", "StateDirectory=minka"):
        assert line in unit
    watchdog = next(int(line.removeprefix("WatchdogSec=")) for line in unit if line.startswith("WatchdogSec="))
    assert watchdog > 2, "minkad sends a keep-alive each half of it, and may be late on a busy machine"


def test_the_user_of_the_service_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/sysusers.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    shutil.copy(CONFIGS / "minkad.sysusers.conf", folder / "minkad.conf")
    shown = run("systemd-sysusers", f"--root={tmp_path}")
    assert shown.returncode == 0, shown.stderr
    assert re.match(r"minka:x:\d+:\d+:Minka sharding daemon:/var/lib/minka:", (tmp_path / "etc/passwd").read_text())


def test_directories_are_made_for_the_user_of_the_service() -> None:
    text = (CONFIGS / "minkad.tmpfiles.conf").read_text()
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert ["d", "/var/lib/minka", "0700", "minka", "minka", "-"] in rows
    assert all(len(row) == 6 and row[0] in "dz" for row in rows)


def test_alerts_are_about_metrics_that_exist(exposition: str) -> None:
    groups = yaml.safe_load((CONFIGS / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    names = set(re.findall(r"^(?:# TYPE )?([a-z_]+)", exposition, re.MULTILINE))
    for rule in rules:
        used = set(re.findall(r"\b(?:minka|process)_[a-z_]+", rule["expr"]))
        assert used, rule["alert"]
        assert used <= names, rule["alert"]
        assert rule["for"]
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description"}
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    states = set(re.findall(r'state="([a-z]+)"', " ".join(rule["expr"] for rule in rules)))
    assert states <= {"failed", "offline", "assigned"}


def test_systemd_does_not_restart_a_node_that_is_refused_for_good() -> None:
    (line,) = re.findall(r"^RestartPreventExitStatus=(.*)$", (CONFIGS / "minkad.service").read_text(), re.MULTILINE)
    assert line.split() == [str(exits.MISTAKE), str(exits.REFUSED)]


def rule_named(name: str) -> dict[str, Any]:
    groups = yaml.safe_load((CONFIGS / "alerts.yml").read_text())["groups"]
    (rule,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == name)
    return dict(rule)


@pytest.mark.parametrize(
    ("name", "tells"),
    [
        ("MinkaClusterDown", r"\(up and .*\) == 0"),
        ("MinkaClusterGone", "unless .* up$"),
        ("MinkaNothingScraped", "^absent"),
    ],
)
def test_an_alert_fires_if_no_node_of_a_cluster_is_scraped(name: str, tells: str) -> None:
    """If no node is scraped, the cluster has no current metrics. So the alert uses the metrics of the last 7 days."""
    rule = rule_named(name)
    assert re.search(tells, rule["expr"])
    assert re.findall(r"minka_[a-z_]+[^)]*", rule["expr"]) == ["minka_node_info[7d]"]
    assert rule["labels"]["severity"] == "critical"


def test_an_alert_prints_the_missing_bytes_as_a_positive_number() -> None:
    rule = rule_named("MinkaDiskFills")
    assert "humanize1024" in rule["annotations"]["description"]
    assert re.match(r"0 - predict_linear\(.*\) > 0$", rule["expr"].partition(" and ")[0])


def test_the_alert_about_a_low_disk_does_not_say_that_all_writes_are_refused() -> None:
    annotations = rule_named("MinkaDiskLow")["annotations"]
    assert "refused" not in annotations["summary"]
    assert "Other replicas lead" in annotations["description"]
