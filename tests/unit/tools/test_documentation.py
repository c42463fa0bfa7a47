"""Links resolve, every page is listed, and every code block has a language."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*(ROOT / "docs").glob("**/*.md"), *ROOT.glob("*.md")])
_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


@cache
def _anchors(path: Path) -> frozenset[str]:
    """Return the anchors of headings, as GitHub creates them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", path.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings)


def _links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", path.read_text()))
    return [link for link in _LINK.findall(text) if not link.startswith(("http:", "https:", "mailto:"))]


@pytest.mark.parametrize("page", PAGES, ids=_NAMES)
def test_links_resolve(page: Path) -> None:
    for link in _links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=_NAMES)
def test_every_block_has_a_language(page: Path) -> None:
    unnamed = [body for language, body in _FENCE.findall(page.read_text()) if not language]
    assert not unnamed, "no test runs commands in these blocks; mark plain text as `text`"


def test_every_page_is_in_the_table_of_contents() -> None:
    # The catalogues have indexes of their own.
    indexes = (ROOT / "docs").glob("**/README.md")
    listed = {(page.parent / link.partition("#")[0]).resolve() for page in indexes for link in _links(page)}
    docs = {path for path in PAGES if ROOT / "docs" in path.parents} - {ROOT / "docs" / "README.md"}
    assert not {str(path.relative_to(ROOT)) for path in docs - listed}


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `dray ui`, and more\n```sh\n# no heading\n```\n## What's next?\n")
    assert _anchors(page) == {"dray-ui-and-more", "whats-next"}


def _cited_paths(path: Path) -> list[str]:
    """Return the repository paths and module names in inline code."""
    text = _FENCE.sub("", path.read_text())
    cited = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|proto|md|json|yaml|jsonl)|dray(?:\.[a-z_]\w*)+)`", text)
    return [name for name in cited if not name.startswith("bench/results/")]


def _exists(name: str) -> bool:
    if name.startswith("dray."):
        # The last part can be a member of the module.
        candidates = [name.replace(".", "/"), name.rpartition(".")[0].replace(".", "/")]
        return any((ROOT / "src" / f"{path}{end}").exists() for path in candidates for end in ("", ".py"))
    # Pages about one package leave out its name.
    return any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "dray", *(ROOT / "src" / "dray").iterdir()))


@pytest.mark.parametrize("page", PAGES, ids=_NAMES)
def test_cited_modules_exist(page: Path) -> None:
    assert not [name for name in _cited_paths(page) if not _exists(name)]
