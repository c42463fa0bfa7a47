"""Why there was no answer, or only a part of one."""

from __future__ import annotations

import os
import socket
import ssl


class HttpError(Exception):
    """Something between us and the server went wrong; an answer with a bad status is not an error here."""


class ConnectError(HttpError):
    """Nobody could be reached, so nothing was asked."""

    def __init__(self, reason: str, address: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        # Where we tried, as host:port.
        self.address = address


class NoAnswerError(HttpError):
    """The connection ended before the first byte of an answer; whether the request was carried out is unknown."""


class BrokenAnswerError(HttpError):
    """An answer began, but is not HTTP or ended too early."""


class AnswerTimeoutError(HttpError):
    """The answer took too long."""


class ClientClosedError(HttpError):
    """The client was closed meanwhile."""


def reason_of(error: BaseException) -> str:
    """An error of the operating system or of TLS in a few words."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"certificate verify failed: {error.verify_message}"
    elif isinstance(error, ssl.SSLError):
        text = (error.reason or text).lower().replace("_", " ")
    elif isinstance(error, socket.gaierror):
        text = (error.strerror or text).lower()
    elif isinstance(error, OSError) and error.errno:
        # The event loops have texts of their own, each another.
        text = os.strerror(error.errno).lower()
    elif isinstance(error, ConnectionResetError):
        text = "connection reset by peer"
    return text
