"""The command that starts a node, as a person at this terminal would type it."""

import shlex

LOOPBACK = ("localhost", "::1", "")


def start_command(node: str, address: str, ended: bool) -> str:
    """The command that starts the node, or restarts it if its process hasn't ended (and doesn't answer)."""
    if in_playground(address):
        restart = f"minkactl playground restart {node}"
        return restart if ended else f"minkactl playground kill {node} && {restart}"
    return _on_host(node, address, f"systemctl {'start' if ended else 'restart'} minkad")


def renew_command(node: str, address: str) -> str:
    """The command that lets the node take the new certificate that a person has put in place of the old one."""
    return _on_host(node, address, "systemctl reload minkad", "once tls.cert there or tls.ca here is renewed")


def stop_command(node: str, address: str) -> str:
    """The command that stops the node."""
    return (
        f"minkactl playground kill {node}"
        if in_playground(address)
        else _on_host(node, address, "systemctl stop minkad")
    )


def look_command(node: str, address: str) -> str:
    """The command that shows the end of the node's log, or where the log is."""
    if in_playground(address):
        return "minkactl playground list"
    return _on_host(node, address, "journalctl -u minkad -n 50")


def clock_command(node: str, address: str) -> str:
    """The command that lets the node's machine synchronize its clock."""
    return _on_host(node, address, "timedatectl set-ntp true")


def in_playground(address: str) -> bool:
    """True if it is a node of this user's playground."""
    from minka import running_playground

    playground = running_playground.read()
    return playground is not None and address in playground.endpoints


def _on_host(node: str, address: str, command: str, when: str = "") -> str:
    """The command, to be run on the node's machine. A comment says when, and names the node if that is this machine,
    which may have several.
    """
    host = address.rpartition(":")[0].strip("[]")
    here = host in LOOPBACK or host.startswith("127.")
    comment = ", ".join(filter(None, (f"{node}, on this machine" if here else "", when)))
    command = command if here else f"ssh {shlex.quote(host)} {command}"
    return f"{command}  # {comment}" if comment else command
