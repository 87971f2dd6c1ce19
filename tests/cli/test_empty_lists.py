"""Options that name nothing, and files that have nothing, where minkactl needs keys or names."""

from pathlib import Path

import pytest

from minkactl.exits import Exit
from tests.cli.conftest import AnsweringNode, Run


@pytest.mark.parametrize(
    "command",
    [
        *(
            ["reassign", "--dry-run", option, value]
            for option in ("--to", "--keyspace", "--drain")
            for value in ("", ",")
        ),
        ["reassign", "--dry-run", "--drain", "athens", "--drain", ""],
        ["kv", "load", "flights", "rows.csv", "--key", ","],
        ["data", "load", "rows.csv", "flights", "--key", "carrier", "--value", ""],
        ["data", "export", "flights", "out", "--key", ","],
    ],
)
def test_an_option_that_names_nothing_is_refused(
    run: Run, node: AnsweringNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Otherwise, an option whose variable isn't set would mean all nodes, keyspaces or columns."""
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("carrier\nUA\n")
    result = run(*command, "--endpoints", node.address)
    assert result.exit_code == Exit.USAGE
    assert f"Invalid value for '{command[-2]}': it names nothing" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["split", "authors", "--at"],
        ["merge", "authors", "--at"],
        ["keyspace", "create", "authors", "--ranges", "--split-at"],
    ],
)
def test_a_file_without_keys_is_refused(run: Run, node: AnsweringNode, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "keys").touch()
    result = run(*command, f"@{tmp_path / 'keys'}", "--endpoints", node.address)
    assert result.exit_code == Exit.USAGE
    assert f"the file {tmp_path / 'keys'} has no keys" in result.stderr
    assert not node.asked


@pytest.mark.parametrize(("name", "content"), [("empty.yaml", ""), ("empty.jsonl", "\n"), ("lists.yaml", "duties: []")])
def test_a_file_without_pallets_and_duties_is_refused(
    run: Run, node: AnsweringNode, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    result = run("apply", "-f", tmp_path / name, "--yes", "--endpoints", node.address)
    assert result.exit_code == Exit.USAGE
    assert f"INVALID_ARGUMENT: {tmp_path / name} has no pallets and no duties" in result.stderr


def test_an_export_since_no_file_is_refused(run: Run, node: AnsweringNode) -> None:
    result = run("data", "export", "flights", "out", "--since", "", "--endpoints", node.address)
    assert result.exit_code == Exit.USAGE
    assert "--since" in result.stderr
