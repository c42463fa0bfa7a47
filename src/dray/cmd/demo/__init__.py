"""`dray demo`: starts a cluster of real processes and runs a scenario that demonstrates device allocation.

`scenario` has the nodes and steps as data; `cluster_state` and `facts` derive the output from API objects, without I/O;
`screen` prints it; `processes`, `programs` and `cluster` start and use the cluster; `runner` runs the steps.
"""

from dray.cmd.demo.runner import run

__all__ = ["run"]
