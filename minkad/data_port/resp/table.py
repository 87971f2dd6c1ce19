"""All commands."""

from typing import Final

from minkad.data_port.resp import cluster, keys, scanning, server, session, strings
from minkad.data_port.resp.command import Command

COMMANDS: Final[dict[bytes, Command]] = {
    command.name.encode(): command
    for module in (strings, keys, scanning, session, cluster, server)
    for command in module.COMMANDS
}
"""By name, in capitals."""
