"""Who asks for a change."""


def requester() -> str:
    """The user who asks, as the operation's record says it: user@host."""
    import getpass  # minkactl starts without them
    import socket

    return f"{getpass.getuser()}@{socket.gethostname()}"
