"""How people type a duty: its pallet, a slash, its id, which may have slashes itself."""

import click


def parse_duty(text: str) -> tuple[str, str]:
    """The pallet and the id. A mistake is one of usage."""
    pallet, slash, duty = text.partition("/")
    if not (pallet and slash and duty):
        raise click.UsageError(f"{text!r} is no duty: PALLET/ID", click.get_current_context(silent=True))
    return pallet, duty
