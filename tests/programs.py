"""Finds the programs that some tests run. If a program is missing, pytest skips the tests that need it, and counts them
with the reason at the end of the run. In CI, which installs all programs, these tests fail instead.
"""

import os
import shutil
from typing import Final

import pytest

_PACKAGES: Final = {"openssl": "openssl", "redis-cli": "redis-tools", "systemd-analyze": "systemd"}  # in Debian


def program(name: str) -> str:
    """Return the path of this program; skip the test if the program isn't installed, or fail it in CI."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} isn't installed; on Debian: apt-get install {_PACKAGES[name]}"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    return path
