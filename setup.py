"""What pyproject.toml can't say: MINKA_COMPILED=1 makes a build in which the modules that each command of a Redis
client goes through are compiled by mypyc. It needs a C compiler, the headers of Python and mypy; the modules stay
plain Python.
"""

import os

from setuptools import Extension, setup

COMPILED = (
    "minka/wire/stored_values.py",
    "minkad/data_port/resp/commit_delay.py",
    "minkad/data_port/resp/connection.py",
    "minkad/data_port/resp/errands.py",
    "minkad/data_port/resp/gets.py",
    "minkad/data_port/resp/intake.py",
    "minkad/data_port/resp/keyspaces.py",
    "minkad/data_port/resp/many.py",
    "minkad/data_port/resp/parsing.py",
    "minkad/data_port/resp/pipes.py",
    "minkad/data_port/resp/reads.py",
    "minkad/data_port/resp/receiving.py",
    "minkad/data_port/resp/scanning.py",
    "minkad/data_port/resp/service.py",
    "minkad/data_port/resp/slots.py",
    "minkad/data_port/resp/untaken.py",
)


def extensions() -> list[Extension]:
    """None, unless the build is to be compiled."""
    if os.environ.get("MINKA_COMPILED") != "1":
        return []
    from mypyc.build import mypycify

    made: list[Extension] = mypycify(list(COMPILED), opt_level="3", group_name="minka")
    return made


setup(ext_modules=extensions())
