"""The harness reads pages correctly and reports failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.docs.harness import Step, read_page, reader_folder, run_page

PAGE = """
Save this as `a.yaml`:

```yaml
# a.yaml
x: 1
```

```sh
name=world
cat a.yaml
```

```console
$ echo hello \\
> $name
hello world
$ false
```

<!-- not run: needs a rocket -->
```sh
exit 3
```

<!-- needs: cat, no-such-program -->
```sh
exit 4
```

* In a list:

  <!-- needs: cat -->
  ```sh
  if true; then
    echo indented
  fi
  ```
"""


def test_commands_files_and_skipped_blocks() -> None:
    page = read_page(PAGE)
    assert page.files == {"a.yaml": "# a.yaml\nx: 1\n"}
    assert page.steps == (
        Step("name=world\ncat a.yaml\n"),
        Step("echo hello \\\n$name\n", "hello world\n"),
        Step("false\n", ""),
        Step("if true; then\n  echo indented\nfi\n"),
    )


def test_steps_share_a_shell() -> None:
    with reader_folder() as folder:
        assert run_page(read_page(PAGE), folder) == ["# a.yaml\nx: 1\n", "hello world\n", "", "indented\n"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh\necho a\nfalse\necho b\n```\n```sh\necho c\n```\n", "ended by 1 in\necho a"),
        ("```sh\nfalse\n```\n", "false"),
        ("```console\n$ echo a ... b\na c\n```\n", "expected:\na c\n"),
        ("```console\n$ echo a\n```\n", "expected:\n\n"),
    ],
)
def test_failures_are_reported(text: str, message: str) -> None:
    with reader_folder() as folder, pytest.raises(AssertionError) as failure:
        run_page(read_page(text), folder)
    assert message in str(failure.value)


def test_background_processes_end_with_the_page() -> None:
    with reader_folder() as folder:
        (output,) = run_page(read_page("```sh\nsleep 1000 &\necho $!\n```\n"), folder)
    assert not Path(f"/proc/{output.strip()}").exists()
