"""The commands of every page in docs/; the tutorials are in a separate module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.docs.harness import ROOT, check_page, pages_in

# Pages with a separate test that checks more than the commands.
SEPARATE = {
    "docs/extended-resources.md": "tests/e2e/extended_resources/test_tutorial.py",
}
# Pages that need other programs than dray and kubectl.
NEEDS: dict[str, tuple[str, ...]] = {
    "docs/operating.md": ("etcd", "etcdutl", "openssl", "curl"),
    "docs/securing.md": ("openssl",),
}


@pytest.mark.parametrize("name", [name for name in pages_in("docs") if name not in SEPARATE])
def test_commands_of_a_page(name: str) -> None:
    check_page(name, *NEEDS.get(name, ()))


@pytest.mark.parametrize(("name", "test"), SEPARATE.items())
def test_pages_with_separate_tests(name: str, test: str) -> None:
    assert Path(name).name in (ROOT / test).read_text()
