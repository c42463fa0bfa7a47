"""Every command of the documentation, page by page; those of the tutorials are in a file of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.docs.harness import ROOT, check_page, pages_below

# Pages that have a test of their own, which looks at more than whether the commands work.
ELSEWHERE = {
    "docs/classic-dra.md": "tests/e2e/classic/test_tutorial.py",
    "docs/extended-resources.md": "tests/e2e/extended_resources/test_tutorial.py",
}
# Pages that need more than dray and kubectl.
NEEDS: dict[str, tuple[str, ...]] = {
    "docs/operating.md": ("etcd", "etcdutl", "openssl", "curl"),
    "docs/security.md": ("openssl",),
}


@pytest.mark.parametrize("name", [name for name in pages_below("docs") if name not in ELSEWHERE])
def test_the_commands_of_a_page(name: str) -> None:
    check_page(name, *NEEDS.get(name, ()))


@pytest.mark.parametrize(("name", "test"), ELSEWHERE.items())
def test_pages_with_tests_of_their_own(name: str, test: str) -> None:
    assert Path(name).name in (ROOT / test).read_text()
