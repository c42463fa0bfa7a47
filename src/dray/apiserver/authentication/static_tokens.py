"""Static bearer tokens from a file in the format of `--token-auth-file`: token,user,uid,"group1,group2"."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from typing import TypeAlias

from dray.apiserver.request import UserInfo

# Keyed by the SHA-256 of the token, so that lookup time does not reveal the token.
StaticTokens: TypeAlias = Mapping[bytes, UserInfo]

_COLUMNS_MIN = 3
_GROUPS_COLUMN = 3


class TokenFileError(Exception):
    """A malformed token file."""


def token_digest(token: str) -> bytes:
    """Return the key of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def parse_token_file(text: str, source: str) -> StaticTokens:
    """Parse the file's text; the last line of a repeated token wins, lines without a token are skipped."""
    tokens: dict[bytes, UserInfo] = {}
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if not row:
            continue
        if len(row) < _COLUMNS_MIN:
            raise TokenFileError(
                f"token file '{source}' must have at least 3 columns (token, user name, user uid), found {len(row)}"
            )
        if row[0]:
            tokens[token_digest(row[0])] = UserInfo(row[1], uid=row[2], groups=_groups(row))
    return tokens


def _groups(row: list[str]) -> tuple[str, ...]:
    if len(row) <= _GROUPS_COLUMN:
        return ()
    return tuple(group for part in row[_GROUPS_COLUMN].split(",") if (group := part.strip()))
