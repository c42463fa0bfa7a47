"""A terminal for tests: runs a program in one, and says what its screen shows in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(r"\033\[\??([0-9;]*)([A-Za-z])|(\r)|(\n)|([^\033\r\n]+)")


@dataclass(frozen=True, slots=True)
class Run:
    """What a program did."""

    code: int
    written: str


def run_in_terminal(
    arguments: Sequence[str], environment: Mapping[str, str], columns: int, rows: int, seconds_max: float
) -> Run:
    """Run a program in a terminal of that size until it ends."""
    child, terminal = pty.fork()
    if child == 0:
        # The size is set before the program looks at it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execve(arguments[0], list(arguments), dict(environment))
    written, deadline = b"", time.monotonic() + seconds_max
    try:
        # Reading fails when the program, which has the other end, is gone.
        while chunk := os.read(terminal, 65536):
            written += chunk
            assert time.monotonic() < deadline, written.decode()
    except OSError:
        pass
    finally:
        os.close(terminal)
    return Run(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), written.decode())


def screen_text(written: str, columns: int) -> list[str]:
    """The lines that are seen in the end; knows what the demo uses: up, clear below, and nothing else that moves."""
    lines, row, column = [""], 0, 0
    for match in _TOKEN.finditer(written.replace("\r\n", "\n")):
        number, letter, carriage, newline, text = match.groups()
        if letter == "A":
            row -= int(number or 1)
            assert row >= 0, "above the first line"
        elif letter == "J":
            del lines[row + 1 :]
            lines[row] = lines[row][:column]
        elif carriage:
            column = 0
        elif newline:
            row, column = row + 1, 0
        elif text:
            for character in text:
                if column == columns:
                    row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
                lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
                column += 1
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in "\n".join(lines).rstrip().split("\n")]
