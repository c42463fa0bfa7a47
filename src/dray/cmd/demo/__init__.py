"""`dray demo`: a cluster of real processes, and a story that shows device allocation working, step by step.

`story` is the story as data; `asked`, `board`, `found` and `rendering` turn documents into what is shown, without I/O;
`processes`, `cluster`, `screen` and `loop` are the hands.
"""

from dray.cmd.demo.loop import run

__all__ = ["run"]
