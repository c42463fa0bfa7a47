"""Semantic versions 2.0.0, strict, for device attributes and CEL's `semver()`.

Error texts are those of the blang/semver library that Kubernetes uses, since users match them.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from functools import lru_cache, total_ordering
from typing import Final

_DIGITS: Final = frozenset(string.digits)
_ALPHANUM: Final = frozenset(string.ascii_letters + string.digits + "-")
_UINT64_MAX: Final = 2**64 - 1
_PARTS: Final = 3
_CACHE_SIZE: Final = 4096

# A numeric identifier sorts below an alphanumeric one: (0, n, "") and (1, 0, text).
_Identifier = tuple[int, int, str]


class SemverError(ValueError):
    """A text that is not a semantic version."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version; build metadata is kept but ignored in order and equality.

    Like order, equality with a value of another type is a `TypeError`, as in Kubernetes; nothing equals None.
    """

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    _key: tuple[int, int, int, int, tuple[_Identifier, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A release sorts above all of its own prereleases.
        released = 0 if self.prerelease else 1
        identifiers = tuple(_sort_key(part) for part in self.prerelease)
        object.__setattr__(self, "_key", (self.major, self.minor, self.patch, released, identifiers))

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> Semver:
        """Parse a version; `normalize` first drops a `v`, adds missing parts and strips leading zeros."""
        return _parse(_normalized(text) if normalize else text)

    def compare(self, other: Semver) -> int:
        """Return -1, 0 or 1."""
        return (self._key > other._key) - (self._key < other._key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Semver):
            return self._key == other._key
        if other is None:
            return False
        raise TypeError(f"a version cannot be compared with {type(other).__name__}")

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, Semver) or self._key != other._key

    def __lt__(self, other: Semver) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(self.prerelease)
        if self.build:
            text += "+" + ".".join(self.build)
        return text


def is_semver(text: str, *, normalize: bool = False) -> bool:
    """Report whether the text is a version."""
    try:
        Semver.parse(text, normalize=normalize)
    except SemverError:
        return False
    return True


def _sort_key(part: str) -> _Identifier:
    # Numbers have no leading zeros, so the longer one is larger.
    return (0, len(part), part) if _DIGITS.issuperset(part) else (1, 0, part)


@lru_cache(maxsize=_CACHE_SIZE)
def _parse(text: str) -> Semver:
    if not text:
        raise SemverError("Version string empty")
    parts = text.split(".", _PARTS - 1)
    if len(parts) != _PARTS:
        raise SemverError("No Major.Minor.Patch elements found")
    major, minor = _number("Major", parts[0]), _number("Minor", parts[1])
    rest, plus, build = parts[2].partition("+")
    patch, dash, prerelease = rest.partition("-")
    return Semver(
        major,
        minor,
        _number("Patch", patch),
        tuple(_prerelease_part(part) for part in prerelease.split(".")) if dash else (),
        tuple(_build_part(part) for part in build.split(".")) if plus else (),
    )


def _number(name: str, text: str) -> int:
    if not _DIGITS.issuperset(text):
        raise SemverError(f'Invalid character(s) found in {name.lower()} number "{text}"')
    if len(text) > 1 and text[0] == "0":
        raise SemverError(f'{name} number must not contain leading zeroes "{text}"')
    return _uint64(text)


def _uint64(text: str) -> int:
    if not text:
        raise SemverError('strconv.ParseUint: parsing "": invalid syntax')
    # Twenty digits hold every uint64; longer texts are not converted.
    if len(text) > len(str(_UINT64_MAX)) or int(text) > _UINT64_MAX:
        raise SemverError(f'strconv.ParseUint: parsing "{text}": value out of range')
    return int(text)


def _prerelease_part(part: str) -> str:
    if not part:
        raise SemverError("Prerelease is empty")
    if _DIGITS.issuperset(part):
        if len(part) > 1 and part[0] == "0":
            raise SemverError(f'Numeric PreRelease version must not contain leading zeroes "{part}"')
        _uint64(part)
    elif not _ALPHANUM.issuperset(part):
        raise SemverError(f'Invalid character(s) found in prerelease "{part}"')
    return part


def _build_part(part: str) -> str:
    if not part:
        raise SemverError("Build meta data is empty")
    if not _ALPHANUM.issuperset(part):
        raise SemverError(f'Invalid character(s) found in build meta data "{part}"')
    return part


def _normalized(text: str) -> str:
    """Return the text without a leading `v` and leading zeros, with missing minor and patch numbers added."""
    parts = text.removeprefix("v").split(".", _PARTS - 1)
    parts = [_without_leading_zeros(part) for part in parts]
    if len(parts) < _PARTS:
        if not _DIGITS.issuperset(parts[-1]):
            raise SemverError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (_PARTS - len(parts))
    return ".".join(parts)


def _without_leading_zeros(part: str) -> str:
    stripped = part.lstrip("0")
    if len(part) > 1 and (not stripped or stripped[0] not in _DIGITS):
        return "0" + stripped if len(stripped) < len(part) else part
    return stripped if len(part) > 1 else part
