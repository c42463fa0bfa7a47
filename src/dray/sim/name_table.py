"""The private table of an anonymized snapshot: which word stands for which part of a name.

Words are made of syllables, so that a file can be read aloud and talked about. What tools conclude from names stays
true: words are as long as what they stand for and sort alike, and what is nearly the same word stays so, such as a
selector with a typing error. A table is used again for later snapshots of the same cluster, which then agree with the
first.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import random
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, Final

_SYLLABLES: Final = tuple(f"{first}{second}" for first, second in product("bcdfghjklmnprstvwxyz", "aeiou"))
_SYLLABLES_MAX: Final = 4
_WORDS: Final = len(_SYLLABLES) ** _SYLLABLES_MAX
_LENGTH: Final = 2 * _SYLLABLES_MAX
# As similar as names are that tools suggest for each other, with a margin: only a part of a name is compared.
_SIMILARITY_MIN: Final = 0.6
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART: Final = re.compile(rf"{UID.pattern}|[A-Za-z]+|\d+")
_IP_BYTES: Final = 3


class TableError(ValueError):
    """A file that is no table of names."""


@cache
def message_words() -> frozenset[str]:
    """Return the words of Kubernetes' and Dray's own messages and constants; no word of a table is one of them."""
    return frozenset((files("dray.sim") / "data" / "message_words.txt").read_text(encoding="utf-8").split())


class NameTable:
    """Words for parts of names, numbers for long numbers, and uids for uids."""

    def __init__(self, key: bytes, rng: random.Random) -> None:
        self._key = key
        self._rng = rng
        # Both by what they stand for.
        self._words: dict[str, str] = {}
        self._others: dict[str, str] = {}
        self._used: set[str] = set()

    @classmethod
    def from_document(cls, document: Any, rng: random.Random) -> NameTable:
        """Return the table that `to_document` gave; raises `TableError`."""
        try:
            table = cls(bytes.fromhex(document["key"]), rng)
            words = {str(part): str(word) for word, part in document["words"].items()}
            table._others.update({str(part): str(other) for other, part in document["others"].items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TableError("this is no table of names, as `dray snapshot --anonymize` writes it") from error
        for part, word in words.items():
            table._keep(part, word)
        return table

    def to_document(self) -> dict[str, Any]:
        """Return the table for a file; whoever has it can undo the anonymization."""
        return {
            "apiVersion": "tools.dray.dev/v1",
            "kind": "NameTable",
            "key": self._key.hex(),
            "words": {word: part for part, word in sorted(self._words.items())},
            "others": {other: part for part, other in sorted(self._others.items())},
        }

    # --- Words. ---

    def add(self, parts: Collection[str]) -> None:
        """Choose words for the parts that have none yet."""
        new = sorted(set(parts) - self._words.keys())
        similar = _similar(set(self._words), new)
        for is_capital in (False, True):
            own = [part for part in new if part not in similar and part[:1].isupper() is is_capital]
            self._insert(own, [part for part in sorted(self._words) if part[:1].isupper() is is_capital])
        for part, other in similar.items():
            self._keep(part, self._similar_word(part, other))

    def word(self, part: str) -> str:
        """Return the word for a part that was added."""
        return self._words[part]

    def _keep(self, part: str, word: str) -> None:
        self._words[part] = word
        self._used.add(word)

    def _insert(self, new: list[str], known: list[str]) -> None:
        """Choose words for the new parts that sort among those of their known neighbours."""
        position = 0
        for index in range(len(known) + 1):
            end = bisect_left(new, known[index]) if index < len(known) else len(new)
            group, position = new[position:end], end
            first = _ordinal(self._words[known[index - 1]]) + 1 if index else 0
            last = _ordinal(self._words[known[index]]) if index < len(known) else _WORDS
            if last - first < 2 * len(group):
                # No word is left in between: these do not sort as the others do.
                first, last = 0, _WORDS
            before = ""
            for part, ordinal in zip(group, sorted(self._sample(first, last, len(group))), strict=True):
                before = self._free_word(ordinal, part, before)
                self._keep(part, before)

    def _sample(self, first: int, last: int, count: int) -> set[int]:
        found: set[int] = set()
        while len(found) < count:
            found.add(self._rng.randrange(first, last))
        return found

    def _free_word(self, ordinal: int, part: str, before: str) -> str:
        """Return a word as long as the part, if one is free; it sorts after the one before."""
        syllables = []
        rest = ordinal
        for _ in range(_SYLLABLES_MAX):
            rest, number = divmod(rest, len(_SYLLABLES))
            syllables.append(_SYLLABLES[number])
        whole = "".join(reversed(syllables))
        while len(whole) < len(part):
            whole += self._rng.choice(_SYLLABLES)
        word = _cased(whole[: len(part)], part)
        while not self._is_free(word) or word <= before:
            word = _cased(whole, part)
            whole += self._rng.choice(_SYLLABLES)
        return word

    def _similar_word(self, part: str, other: str) -> str:
        """Return a word that differs from that of `other` as the part differs from it."""
        known = self._words[other].lower()
        # Of another length only if no word of the same was free.
        known = known[: len(other)].ljust(len(other), "a")
        matcher = difflib.SequenceMatcher(None, other.lower(), part.lower(), autojunk=False)
        operations = matcher.get_opcodes()
        # So that nothing else in the words is the same.
        letters = sorted(set(_LETTERS) - set(known))
        while True:
            made = (
                known[first:last] if kind == "equal" else "".join(self._rng.choices(letters, k=end - start))
                for kind, first, last, start, end in operations
            )
            word = _cased("".join(made), part)
            if self._is_free(word):
                return word
            operations = [*operations, ("insert", 0, 0, 0, 1)]

    def _is_free(self, word: str) -> bool:
        return word not in self._used and word not in self._words and word.lower() not in message_words()

    # --- Other parts. ---

    def uid(self, uid: str) -> str:
        """Return a uid for a uid."""
        digest = self._digest("uid", uid).hex()
        return self._other(uid, f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}")

    def number(self, digits: str) -> str:
        """Return another number of as many digits."""
        known = self._others.get(digits)
        if known is not None:
            return known
        used = set(self._others.values())
        while True:
            made = "".join(self._rng.choices("0123456789", k=len(digits)))
            if made not in used:
                return self._other(digits, made)

    def address(self, address: str) -> str:
        """Return a private IP address for an address."""
        digest = self._digest("address", address)
        if ":" in address:
            return self._other(address, f"fd00::{digest[:2].hex()}:{digest[2:4].hex()}")
        return self._other(address, ".".join(["10", *(str(part) for part in digest[:_IP_BYTES])]))

    def _other(self, part: str, other: str) -> str:
        return self._others.setdefault(part, other)

    def _digest(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"{purpose} {text}".encode(), hashlib.sha256)

    # --- Back. ---

    def translated(self, text: str) -> str:
        """Return a text about the anonymized objects with the names of the original."""
        parts = {word: part for part, word in self._words.items()}
        others = {other: part for part, other in self._others.items()}
        addresses = [re.escape(other) for other in others if not other.isdigit() and not UID.fullmatch(other)]
        if addresses:
            text = re.sub(rf"(?<![\w.:])(?:{'|'.join(addresses)})(?!\w|[.:]\w)", lambda found: others[found[0]], text)
        return _PART.sub(lambda found: parts.get(found[0]) or others.get(found[0]) or found[0], text)


def _cased(word: str, part: str) -> str:
    return word.capitalize() if part[:1].isupper() else word


def _ordinal(word: str) -> int:
    """Return where a word is among all words of four syllables."""
    ordinal = 0
    for start in range(0, _LENGTH, 2):
        number = bisect_left(_SYLLABLES, word[start : start + 2].lower())
        ordinal = ordinal * len(_SYLLABLES) + min(number, len(_SYLLABLES) - 1)
    return ordinal


def _similar(known: set[str], new: list[str]) -> dict[str, str]:
    """Return, by new part, a part with a word of its own that it is nearly the same as."""
    alike: dict[tuple[str, int], list[str]] = {}
    for part in known:
        alike.setdefault((part[0].lower(), len(part)), []).append(part)
    found: dict[str, str] = {}
    for part in new:
        other = next((item for item in _candidates(alike, part) if _is_similar(item, part)), None)
        if other is None:
            alike.setdefault((part[0].lower(), len(part)), []).append(part)
        else:
            found[part] = other
    return found


def _candidates(alike: dict[tuple[str, int], list[str]], part: str) -> Iterator[str]:
    """Yield the parts that begin with the same letter and are about as long."""
    for length in (len(part), len(part) - 1, len(part) + 1):
        yield from alike.get((part[0].lower(), length), ())


def _is_similar(one: str, other: str) -> bool:
    matcher = difflib.SequenceMatcher(None, one.lower(), other.lower(), autojunk=False)
    return matcher.real_quick_ratio() >= _SIMILARITY_MIN and matcher.ratio() >= _SIMILARITY_MIN
