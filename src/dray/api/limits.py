"""Limits on the size and depth of documents, whatever form they arrive in.

Every way in (JSON, YAML, protobuf, patches) keeps these limits before the document reaches code that recurses.
"""

from __future__ import annotations

from typing import Any, Final

from dray.lib.processor_time import tick, ticking

# Objects have some 15 levels, large custom resource definitions some 60. All that follows recurses for every level,
# down to the encoder of stored objects, whose own limit is 254.
NESTING_DEPTH_MAX: Final = 128
DEPTH_EXCEEDED: Final = f"exceeded max depth of {NESTING_DEPTH_MAX} levels"

# The objects, lists, members and elements of a body: whatever follows takes time for each. The largest objects in use,
# definitions of custom resources, have some 70,000. So many take up to 50 ms in each part of a request that cannot be
# suspended, such as the parser.
VALUES_MAX: Final = 250_000
TOO_MANY_VALUES: Final = f"exceeded max number of {VALUES_MAX} values"

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
        tick()
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


def has_too_many_values(value: Any) -> bool:
    """Report whether a value has more than `VALUES_MAX` values within; without recursion."""
    stack, count = [value], 0
    while stack and count <= VALUES_MAX:
        tick()
        item = stack.pop()
        count += len(item)
        children = item.values() if type(item) is dict else item
        stack.extend([child for child in children if type(child) is dict or type(child) is list])
    return count > VALUES_MAX


def depth_of(value: Any) -> int:
    """Return the levels of objects and lists of a value, at most one more than allowed; without recursion."""
    level, depth = [value], 0
    while level and depth <= NESTING_DEPTH_MAX:
        found = [item for item in ticking(level) if type(item) is dict or type(item) is list]
        depth += bool(found)
        level = [child for item in ticking(found) for child in (item.values() if type(item) is dict else item)]
    return depth
