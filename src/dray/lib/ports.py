"""Numbers of TCP and UDP ports."""

from __future__ import annotations

from typing import Final

PORT_MAX: Final = 0xFFFF
_DIGITS_MAX: Final = len(str(PORT_MAX))


def parse_port(text: str) -> int | None:
    """Return the number of a port; None if the text is none, which may be longer than the numbers that Python reads."""
    digits = text.lstrip("0")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _DIGITS_MAX or int(digits) > PORT_MAX:
        return None
    return int(digits)
