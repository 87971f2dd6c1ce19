"""Runs Python processes that may make only the system calls that a systemd unit allows."""

import re
import subprocess
from functools import cache
from pathlib import Path

from tests.programs import program

# Python imports this module when it starts, and the module sets the filter. Child processes inherit the filter.
_SITECUSTOMIZE = """
import ctypes, errno, os
if "MINKA_TEST_FILTERED" not in os.environ:
    os.environ["MINKA_TEST_FILTERED"] = "1"
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    seccomp.seccomp_rule_add.argtypes = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint
    seccomp.seccomp_load.argtypes = (ctypes.c_void_p,)
    REFUSE, ALLOW = 0x00050000 | errno.EPERM, 0x7FFF0000
    rules = seccomp.seccomp_init(ctypes.c_uint32(REFUSE))
    for name in {names!r}:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # else this machine has none of that name
            assert seccomp.seccomp_rule_add(rules, ALLOW, number, 0) == 0, name
    assert seccomp.seccomp_load(rules) == 0
"""


def filtered(unit: Path, folder: Path) -> dict[str, str]:
    """Return an environment in which a Python process gets EPERM for each system call that the unit's SystemCallFilter
    doesn't allow. This function writes a module into `folder`; the module sets a filter when Python starts.
    """
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(names=sorted(allowed(unit))))
    return {"PYTHONPATH": str(folder)}


def allowed(unit: Path) -> set[str]:
    """Return the names of the system calls that the unit allows. See SystemCallFilter in systemd.exec(5)."""
    names: set[str] = set()
    for line in re.findall("^SystemCallFilter=(.*)$", unit.read_text(), re.MULTILINE):
        found = set().union(*map(_members, line.removeprefix("~").split()))
        names = names - found if line.startswith("~") else names | found
    return names


@cache
def _members(name: str) -> frozenset[str]:
    if not name.startswith("@"):
        return frozenset({name})
    command = [program("systemd-analyze"), "syscall-filter", name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.strip() for line in shown.stdout.splitlines()[1:]]
    return frozenset().union(*(_members(line) for line in lines if line and not line.startswith("#")))
