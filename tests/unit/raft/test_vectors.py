"""The published traces of etcd/raft, with one test for each file. Other tests check that the runner of these traces
notices differences.
"""

from pathlib import Path

import pytest

from tests.vectors.__main__ import main
from tests.vectors.datadriven import FormatError, parse_directive, read_cases
from tests.vectors.describe import quote
from tests.vectors.runner import find_files, run_file

DATA = Path(__file__).parents[2] / "vectors" / "data"
FILES = find_files(DATA)


def test_all_trace_files_are_found() -> None:
    assert len(FILES) == 24


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_published_trace(path: Path) -> None:
    verdict = run_file(path)
    assert not verdict.failure, verdict.failure
    assert not verdict.skipped, verdict.skipped
    assert verdict.lines > 0


def trace(folder: Path, text: str) -> Path:
    """Write a trace file in interaction/; returns its path."""
    path = folder / "interaction" / "trace.txt"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_the_runner_prints_a_difference_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(
        tmp_path,
        "log-level none\n----\nok\n\nadd-nodes 1 voters=(1) index=2\n----\nok\n\nlog-level debug\n----\nok\n\n"
        "raft-state\n----\n1: StateLeader (Voter) Term:0 Lead:0\n",
    )
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"{path}:15: raft-state (line 13)" in out
    assert "- 1: StateLeader (Voter) Term:0 Lead:0" in out
    assert "+ 1: StateFollower (Voter) Term:0 Lead:0" in out
    assert out.endswith("\n0 passed, 1 failed\n")


def test_a_missing_line_and_a_line_too_many_are_differences(tmp_path: Path) -> None:
    log = "log-level none\nadd-nodes 1 voters=(1) index=2\ncampaign 1\nstabilize\nlog-level debug\nraft-log 1\n----\n"
    path = trace(tmp_path, log + '1/3 EntryNormal ""\n')
    assert not run_file(path).failure
    for wrong in ('1/3 EntryNormal ""\n1/4 EntryNormal ""\n', "ok\n"):
        path.write_text(log + wrong)
        assert run_file(path).failure


def test_the_text_of_log_lines_is_left_out_and_counted(tmp_path: Path) -> None:
    path = trace(tmp_path, "add-nodes 1 voters=(1) index=2\n----\nINFO anything\nINFO at all\n")
    verdict = run_file(path)
    assert not verdict.failure
    assert verdict.log_lines == 2
    assert "2 lines of log text left out" in str(verdict)


@pytest.mark.parametrize(
    "command", ["process-append-thread 1", "forget-leader 1", "add-nodes 1 async-storage-writes=true"]
)
def test_a_file_out_of_scope_is_skipped_with_its_reason(tmp_path: Path, command: str) -> None:
    verdict = run_file(trace(tmp_path, f"{command}\n----\nok\n"))
    assert "out of scope" in verdict.skipped
    assert str(verdict).startswith("skip")


def test_a_violated_assertion_fails_only_its_file(tmp_path: Path) -> None:
    text = "add-nodes 1 voters=(1) index=2\n----\nINFO x\n\ncompact 1 99\n----\nok\n"
    assert "compact" in run_file(trace(tmp_path, text)).failure


def test_directives_are_parsed() -> None:
    command, args = parse_directive("do 1 a=b c=(1, 2 3) d=(x(y,z), w) e=()")
    assert command == "do"
    assert [(arg.key, arg.values) for arg in args] == [
        ("1", ()),
        ("a", ("b",)),
        ("c", ("1", "2", "3")),
        ("d", ("x(y,z)", "w")),
        ("e", ("",)),
    ]
    with pytest.raises(FormatError):
        parse_directive("do a=(1,2")


def test_outputs_with_blank_lines_and_continued_directives(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("# comment\none \\\n  a=1\n----\n----\nx\n\ny\n----\n----\n\ntwo\nmany\nlines\n----\nz\n")
    one, two = read_cases(path)
    assert (one.command, one.values("a"), one.expected, one.expected_line) == ("one", ("1",), ("x", "", "y"), 6)
    assert (two.command, two.input, two.expected, two.line) == ("two", "many\nlines", ("z",), 12)


def test_quoted_arguments_are_parsed() -> None:
    assert quote(b'a"b\\\n\x00\xff\x7f') == '"a\\"b\\\\\\n\\x00\\xff\\x7f"'
    assert quote("é\u200b".encode()) == '"é\\u200b"'
