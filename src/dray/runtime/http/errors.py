"""Errors of the HTTP client."""

from __future__ import annotations

import os
import socket
import ssl


class HttpError(Exception):
    """A request failed without a complete response; responses with an error status are not errors here."""


class ConnectError(HttpError):
    """No connection; the request was not sent."""

    def __init__(self, reason: str, address: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        # The address that was tried, as host:port.
        self.address = address


class AddressNotAllowedError(ConnectError):
    """The host is, or its name resolves to, an address that may not be dialled."""


class NoResponseError(HttpError):
    """The connection was closed before the first byte of a response; the request may have been executed."""


class BrokenResponseError(HttpError):
    """The response is malformed or incomplete."""


class ResponseTimeoutError(HttpError):
    """The response did not arrive before the deadline."""


class ClientClosedError(HttpError):
    """The client was closed."""


def reason_of(error: BaseException) -> str:
    """Return a short description of an error of the operating system or of TLS."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"certificate verify failed: {error.verify_message}"
    elif isinstance(error, ssl.SSLError):
        text = (error.reason or text).lower().replace("_", " ")
    elif isinstance(error, socket.gaierror):
        text = (error.strerror or text).lower()
    elif isinstance(error, OSError) and error.errno:
        # The messages of event loops differ.
        text = os.strerror(error.errno).lower()
    elif isinstance(error, ConnectionResetError):
        text = "connection reset by peer"
    return text
