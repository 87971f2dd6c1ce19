"""Log lines in three forms: as text for people, as JSON for programs, and for systemd's journal."""

import io
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minkad.process import logs
from minkad.process.exits import complain

log = logging.getLogger("minkad.coordinator.driver")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_each_json_line_is_one_object_with_its_extra_fields() -> None:
    out = io.StringIO()
    logs.setup("info", "json", "athens", stream=out)
    log.info("became %s", "active controller", extra={"term": 7, "ratio": 0.5, "path": Path("/d"), "bad": float("nan")})
    log.debug("below the level")
    line = json.loads(out.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("ts"))
    assert line == {
        "level": "info",
        "node": "athens",
        "logger": "minkad.coordinator.driver",
        "msg": "became active controller",
        "term": 7,
        "ratio": 0.5,
        "path": "/d",
        "bad": "nan",
    }


def test_a_list_is_json_for_machines_and_one_line_for_people() -> None:
    extra = {"changed": ["log.level: info → debug", "migrations.per_node: 1 → 3"], "ids": (1, 2), "none": []}
    out = io.StringIO()
    logs.setup("info", "json", "athens", stream=out)
    log.info("configuration reloaded", extra=extra)
    line = json.loads(out.getvalue())
    assert (line["changed"], line["ids"], line["none"]) == (extra["changed"], [1, 2], [])
    out = io.StringIO()
    logs.setup("info", "human", "athens", stream=out)
    log.info("configuration reloaded", extra=extra)
    assert 'changed="log.level: info → debug, migrations.per_node: 1 → 3" ids="1, 2" none=""' in out.getvalue()


def test_extra_fields_never_replace_standard_ones() -> None:
    out = io.StringIO()
    logs.setup("info", "json", "athens", stream=out)
    log.info("failed", extra={"node": "byzantium", "level": 3})
    line = json.loads(out.getvalue())
    assert (line["node"], line["node_"], line["level"], line["level_"]) == ("athens", "byzantium", "info", 3)


def test_json_has_the_traceback_in_one_line() -> None:
    out = io.StringIO()
    logs.setup("info", "json", "athens", stream=out)
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        log.exception("failed")
    (text,) = out.getvalue().splitlines()
    assert "ValueError: broken\nin two" in json.loads(text)["exception"]


def test_human_lines() -> None:
    out = io.StringIO()
    logs.setup("info", "human", "athens", stream=out)
    log.warning("retrying", extra={"peer": "byzantium", "error": "no route", "tries": 3, "empty": ""})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} WARNING athens coordinator\.driver: "
        r'retrying peer=byzantium error="no route" tries=3 empty=""\n',
        out.getvalue(),
    )


def test_control_characters_in_a_message_are_escaped() -> None:
    out = io.StringIO()
    logs.setup("info", "human", "athens", stream=out)
    log.info("key \x1b[31m\nINFO athens all is well", extra={"value": "a\nb\x1b"})
    (line,) = out.getvalue().splitlines()
    assert line.endswith(r'key \x1b[31m\nINFO athens all is well value="a\nb\u001b"')


@pytest.mark.parametrize("format_", logs.FORMATS)
def test_a_very_long_message_is_cut(format_: str) -> None:
    out = io.StringIO()
    logs.setup("info", format_, "athens", stream=out)
    log.info("m" * 100_000, extra={"value": "v" * 100_000})
    assert len(out.getvalue()) < 20_000
    assert "(100000 characters)" in out.getvalue()


def test_the_journal_gets_priorities_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    with path.open("w") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        logs.setup("debug", "human", "athens", stream=stream)
        log.info("one")
        log.debug("two")
        try:
            raise ValueError("three")
        except ValueError:
            log.exception("failed")
    lines = path.read_text().splitlines()
    assert lines[:3] == [
        "<6>INFO    athens coordinator.driver: one",
        "<7>DEBUG   athens coordinator.driver: two",
        "<3>ERROR   athens coordinator.driver: failed",
    ]
    assert all(line.startswith("<3>") for line in lines[2:])
    assert lines[-1] == "<3>ValueError: three"


def test_another_stream_is_not_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    with (tmp_path / "file").open("w") as stream:
        logs.setup("info", "human", "athens", stream=stream)
        log.info("one")
    assert re.match(r"\d\d:", (tmp_path / "file").read_text())


def test_a_second_setup_replaces_level_and_format() -> None:
    out = io.StringIO()
    logs.setup("info", "human", "athens", stream=out)
    logs.setup("error", "json", "athens", stream=out)
    log.warning("no longer")
    log.error("still")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["msg"] == "still"


def test_libraries_log_only_warnings_and_python_warnings_are_logged() -> None:
    out = io.StringIO()
    logs.setup("debug", "json", "athens", stream=out)
    logging.getLogger("aiohttp.access").info("GET /livez")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("odd", stacklevel=1)
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["logger"] == "py.warnings"


@pytest.mark.parametrize("code", Code)
def test_the_remedy_of_a_failed_start_does_not_refer_to_the_nodes_log(
    code: Code, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complain(MinkaError(code, "the reason"), 1) == 1
    complaint, remedy = capsys.readouterr().err.splitlines()
    assert complaint == f"minkad: {code.name}: the reason"
    assert remedy.startswith("  remedy: ")
    assert "node's log" not in remedy
