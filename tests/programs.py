"""Programs of the machine that some tests run. If a program is missing, the tests that need it are skipped, and counted
with the reason at the end of the run. In CI, which installs all programs, these tests fail.
"""

import os
import shutil
from typing import Final

import pytest

_PACKAGES: Final = {"openssl": "openssl", "redis-cli": "redis-tools", "systemd-analyze": "systemd"}  # Debian's


def program(name: str) -> str:
    """The path of this program; skips the test if it isn't installed."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} isn't installed; on Debian: apt-get install {_PACKAGES[name]}"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    return path
