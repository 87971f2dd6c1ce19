"""Blocking work on threads."""

import asyncio
from collections.abc import Callable


async def on_thread(work: Callable[..., None], *args: object) -> None:
    """Run it on a thread; whoever is cancelled meanwhile still waits for its end, so that nothing runs on behind."""
    running = asyncio.get_running_loop().run_in_executor(None, work, *args)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
