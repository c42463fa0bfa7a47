"""JSON texts as Go writes them. Pure."""

from __future__ import annotations

import re
from typing import Final

# Characters that Go escapes in strings, and that occur nowhere else in JSON.
_ESCAPED: Final = re.compile(rb"[<>&]|\xe2\x80[\xa8\xa9]")
_ESCAPES: Final = {
    b"<": rb"\u003c",
    b">": rb"\u003e",
    b"&": rb"\u0026",
    b"\xe2\x80\xa8": rb"\u2028",
    b"\xe2\x80\xa9": rb"\u2029",
}


def escape_html(text: bytes) -> bytes:
    """Return a JSON text with Go's escapes, so that a raw value that a Go client wrote comes back byte for byte.

    Controllers compare such bytes: a DaemonSet's with those of its ControllerRevisions.
    """
    if b"<" not in text and b">" not in text and b"&" not in text and (text.isascii() or b"\xe2\x80" not in text):
        return text
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text)
