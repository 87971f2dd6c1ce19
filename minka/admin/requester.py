"""The name of the user who asks for a change."""


def requester() -> str:
    """The user who asks, in the form in which operations record it: user@host."""
    import getpass  # imported here, so that minkactl starts faster
    import os
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
