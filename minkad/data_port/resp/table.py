"""All commands."""

from typing import Final

from minkad.data_port.resp import cluster, connection_commands, keys, scanning, server, strings
from minkad.data_port.resp.command import Command

COMMANDS: Final[dict[bytes, Command]] = {
    command.name.encode(): command
    for module in (strings, keys, scanning, connection_commands, cluster, server)
    for command in module.COMMANDS
}
"""By name, in capitals."""
