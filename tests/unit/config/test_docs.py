"""Statements of docs/operations.md about the configuration and the metrics are true."""

import re
from pathlib import Path

import yaml

from minkad.config import load, variable
from minkad.config.schema import KEYS

TEXT = (Path(__file__).parents[3] / "docs/operations.md").read_text()


def test_the_configurations_in_operations_md_load(tmp_path: Path) -> None:
    blocks = [block for block in re.findall(r"(?:^    .*\n)+", TEXT, re.MULTILINE) if block.startswith("    node:")]
    assert len(blocks) == 2
    path = tmp_path / "minkad.yaml"
    for block in blocks:
        path.write_text(re.sub("^    ", "", block, flags=re.MULTILINE))
        assert yaml.safe_load(path.read_text())["node"]["id"] == load(path, {}).node.id


def test_the_variables_in_operations_md_exist() -> None:
    named = set(re.findall(r"MINKAD_[A-Z_]+[A-Z](?==)", TEXT))
    assert named
    assert named <= {variable(key) for key in KEYS}


def test_operations_md_lists_every_metric(exposition: str) -> None:
    families = set(re.findall(r"^# TYPE (minka_\S+)", exposition, re.MULTILINE))
    samples = set(re.findall(r"^(minka_[a-z_]+)", exposition, re.MULTILINE))
    named = set(re.findall(r"minka_[a-z_]+[a-z]", TEXT))
    assert families - named == set()
    assert named - families - samples == set()
