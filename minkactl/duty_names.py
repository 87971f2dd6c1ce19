"""Duties as people type them: pallet, slash, id; the id may contain slashes."""

import click


def parse_duty(text: str) -> tuple[str, str]:
    """The pallet and the id. Raises UsageError."""
    pallet, slash, duty = text.partition("/")
    if not (pallet and slash and duty):
        raise click.UsageError(f"{text!r} isn't a duty: PALLET/ID", click.get_current_context(silent=True))
    return pallet, duty
