"""Keys as people type them: text, 0x and hex, or a file of them."""

import os

import click

MAX_FILE_BYTES = 16 * 1024 * 1024


def parse_key(text: str) -> bytes:
    """The key for bob or 0x626f62. Raises click.BadParameter for bad hex."""
    from minka.cluster.key_ranges import key_of_text

    try:
        return key_of_text(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} begins with 0x and isn't hex") from None


def parse_keys(text: str) -> list[bytes]:
    """The keys in b,d or in @FILE, which has one a line, in their order. Raises click.BadParameter, also for a file
    without keys.
    """
    if not text.startswith("@"):
        return [parse_key(part) for part in text.split(",")]
    try:
        with open(text[1:], "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{text[1:]}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise click.BadParameter(f"{text[1:]} is larger than {MAX_FILE_BYTES >> 20} MiB")
    if not content.strip():
        raise click.BadParameter(f"the file {text[1:]} has no keys")
    return [parse_key(os.fsdecode(line)) for line in content.splitlines()]


def columns_text(text: str) -> str:
    """A key of columns as their values, such as 2013, 1, UA, for people who read a table; any other key as it is. No
    command takes this form, so documents have the key itself.
    """
    from minka.errors import MinkaError
    from minka.rows import decode_key

    if not text.startswith("0x"):
        return text
    try:
        shown = ", ".join(map(str, decode_key(bytes.fromhex(text[2:]))))
    except (MinkaError, ValueError):
        return text
    return shown if shown.isprintable() else text


def text_or_hex(value: bytes) -> str:
    """A value for people: its text if it is plain, else 0x and hex."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() else f"0x{value.hex()}"
