"""Limits on the size and depth of documents, whatever form they arrive in.

Every way in (JSON, YAML, protobuf, patches) keeps these limits before the document reaches code that recurses.
"""

from __future__ import annotations

from typing import Any, Final

# Objects have some 15 levels, large custom resource definitions some 60. All that follows recurses for every level,
# down to the encoder of stored objects, whose own limit is 254.
NESTING_DEPTH_MAX: Final = 128
DEPTH_EXCEEDED: Final = f"exceeded max depth of {NESTING_DEPTH_MAX} levels"

# The size to which a small body may expand (aliases, copies): that of the largest body, as in kube-apiserver.
EXPANDED_BYTES_MAX: Final = 3 * 1024 * 1024

# More decimal digits than any 64-bit integer has, and far less than Python takes to convert.
INTEGER_DIGITS_MAX: Final = 64


def is_too_deep(value: Any) -> bool:
    """Report whether a value has more than `NESTING_DEPTH_MAX` levels of objects and lists."""
    return depth_of(value) > NESTING_DEPTH_MAX


# What each value within a copy is charged besides its text: it takes some 70 bytes of memory, and processor time in all
# that follows.
_COPIED_VALUE_BYTES: Final = 64


def size_of_copy(value: Any) -> int:
    """Return the size of a copied value: about that in JSON, and more for each value within; without recursion."""
    total = -_COPIED_VALUE_BYTES
    stack = [value]
    while stack:
        item = stack.pop()
        total += _COPIED_VALUE_BYTES
        if type(item) is str:
            total += len(item) + 2
        elif type(item) is dict:
            total += 2 + sum([len(key) + 4 for key in item])
            stack.extend(item.values())
        elif type(item) is list:
            total += 2 + len(item)
            stack.extend(item)
        else:
            # A number, a boolean or null.
            total += 5
    return total


def depth_of(value: Any) -> int:
    """Return the levels of objects and lists of a value, at most one more than allowed; without recursion."""
    level, depth = [value], 0
    while level and depth <= NESTING_DEPTH_MAX:
        found = [item for item in level if type(item) is dict or type(item) is list]
        depth += bool(found)
        level = [child for item in found for child in (item.values() if type(item) is dict else item)]
    return depth
