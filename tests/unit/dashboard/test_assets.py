"""The page's files: which modules the browser fetches at once."""

from __future__ import annotations

import posixpath
import re

from dray.dashboard import assets

_LINKED = re.compile(r'<link rel="modulepreload" href="([^"]+)">')


def test_the_page_links_the_modules_that_the_first_picture_needs() -> None:
    page = assets.asset("")
    assert page is not None
    linked = _LINKED.findall(page.body.decode())
    assert linked[0] == "js/main.js"
    assert {"js/views/overview.js", "js/heatmap.js", "js/api.js"} < set(linked)
    assert not {"js/views/claims.js", "js/views/pods.js", "js/rows.js"} & set(linked)
    assert len(linked) == len(set(linked))
    assert all(assets.asset(name) is not None for name in linked)


def test_every_import_of_a_linked_module_is_linked() -> None:
    page = assets.asset("")
    assert page is not None
    linked = set(_LINKED.findall(page.body.decode()))
    for name in linked:
        module = assets.asset(name)
        assert module is not None
        imported = re.findall(r'^import [^;]* from "([^"]+)"', module.body.decode(), re.MULTILINE)
        assert {posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in imported} <= linked
