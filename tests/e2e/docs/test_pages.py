"""Every command of the documentation, page by page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.docs.harness import ROOT, folder_of_reader, has_programs, read_page, run_page

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


def _pages() -> list[str]:
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md"))
    return [name for name in found if name not in ELSEWHERE and read_page((ROOT / name).read_text()).steps]


@pytest.mark.parametrize("name", _pages())
def test_the_commands_of_a_page(name: str) -> None:
    needed = ("kubectl", *NEEDS.get(name, ()))
    if not has_programs(*needed):
        pytest.skip(f"needs {', '.join(needed)}")
    with folder_of_reader() as folder:
        run_page(read_page((ROOT / name).read_text()), folder)


@pytest.mark.parametrize(("name", "test"), ELSEWHERE.items())
def test_pages_with_tests_of_their_own(name: str, test: str) -> None:
    assert Path(name).name in (ROOT / test).read_text()
