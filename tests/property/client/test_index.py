"""The cache of an informer against a plain dictionary by key."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.document import Document, NamespacedName
from dray.client.indexer import ImmutableFields, Indexer
from dray.client.objects import key_of

BY_PARITY, BY_NOTHING = "parity", "nothing"

keys = st.builds(NamespacedName, st.sampled_from(["", "a", "b"]), st.sampled_from(["x", "y", "z"]))
# A number is put at the key; None removes it.
changes = st.lists(st.tuples(keys, st.none() | st.integers(1, 9)), max_size=30)


def parity(number: int) -> tuple[str, ...]:
    return ("odd",) if number % 2 else ()


def play(cache: Indexer[int], steps: list[tuple[NamespacedName, int | None]]) -> dict[NamespacedName, int]:
    plain: dict[NamespacedName, int] = {}
    for key, number in steps:
        if number is None:
            assert cache.remove(key) == plain.pop(key, None)
        else:
            assert cache.put(key, number) == plain.get(key)
            plain[key] = number
    return plain


@settings(max_examples=200, deadline=None)
@given(changes, st.integers(0, 30))
def test_knows_what_a_dictionary_knows(steps: list[tuple[NamespacedName, int | None]], early: int) -> None:
    cache: Indexer[int] = Indexer()
    play(cache, steps[:early])
    cache.add_index(BY_PARITY, parity)
    cache.add_index(BY_NOTHING, lambda _: ("all",))
    for key in [key for key, _ in cache.items()]:
        cache.remove(key)
    plain = play(cache, steps)

    assert dict(cache.items()) == plain
    assert sorted(cache.list()) == sorted(plain.values())
    assert len(cache) == len(plain)
    for namespace in ("a", "b", "none"):
        assert list(cache.list(namespace)) == [number for key, number in plain.items() if key.namespace == namespace]
    for key in {key for key, _ in steps}:
        assert cache.get_key(key) == cache.get(key.name, key.namespace) == plain.get(key)
    assert sorted(cache.by_index(BY_PARITY, "odd")) == sorted(number for number in plain.values() if number % 2)
    assert sorted(cache.by_index(BY_NOTHING, "all")) == sorted(plain.values())


@settings(max_examples=100, deadline=None)
@given(changes, changes)
def test_keys_outside_another(
    steps: list[tuple[NamespacedName, int | None]], others: list[tuple[NamespacedName, int | None]]
) -> None:
    cache: Indexer[int] = Indexer()
    other: Indexer[int] = Indexer()
    plain, wanted = play(cache, steps), play(other, others)
    assert set(cache.keys_outside(other)) == plain.keys() - wanted.keys()
    assert bool(cache) == bool(plain)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(keys, st.integers(1, 9)), max_size=30), st.booleans())
def test_a_list_is_taken_as_one_object_after_the_other(
    listed: list[tuple[NamespacedName, int]], is_early: bool
) -> None:
    objects = [{"metadata": {"namespace": key.namespace, "name": key.name}, "number": number} for key, number in listed]
    arrived: Indexer[Document] = Indexer({BY_PARITY: _parity_of} if is_early else None)
    arrived.put_all(objects)
    cache: Indexer[Document] = Indexer({BY_PARITY: _parity_of})
    cache.take_all(arrived)
    plain: Indexer[Document] = Indexer({BY_PARITY: _parity_of})
    for obj in objects:
        plain.put(key_of(obj), obj)

    assert list(cache.items()) == list(plain.items())
    assert sorted(map(str, cache.by_index(BY_PARITY, "odd"))) == sorted(map(str, plain.by_index(BY_PARITY, "odd")))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(keys, st.none() | st.integers(1, 9)), max_size=30), st.integers(0, 30))
def test_values_of_immutable_fields_are_computed_once(
    steps: list[tuple[NamespacedName, int | None]], early: int
) -> None:
    asked: list[Document] = []

    def values(obj: Document) -> tuple[str, ...]:
        asked.append(obj)
        return _parity_of(obj)

    cache: Indexer[Document] = Indexer()
    plain: Indexer[Document] = Indexer({BY_PARITY: _parity_of})
    created = 0
    for number, (key, version) in enumerate(steps):
        if number == early:
            created = len(cache)
            cache.add_index(BY_PARITY, ImmutableFields(values))
        if version is None:
            assert cache.remove(key) == plain.remove(key)
            continue
        # All versions of an object have the number of the first one.
        old = plain.get_key(key)
        created += old is None and number >= early
        obj = {"number": version if old is None else old["number"], "version": version}
        assert cache.put(key, obj) == plain.put(key, obj)
    if len(steps) > early:
        assert len(asked) == created
        assert sorted(map(str, cache.by_index(BY_PARITY, "odd"))) == sorted(map(str, plain.by_index(BY_PARITY, "odd")))


def _parity_of(obj: Document) -> tuple[str, ...]:
    return parity(obj["number"])
