"""What the author of a classic driver's controller imports: claims of cdi.k8s.io, allocated by the driver itself.

Write a class with `allocate`, `deallocate` and perhaps `unsuitable_nodes`, and `run` it; the kit does the rest.
"""

from dray.driver.classic.interface import Allocation, Claim, ClassicController, NoRoomError
from dray.driver.classic.loop import Options, run, serve

__all__ = ["Allocation", "Claim", "ClassicController", "NoRoomError", "Options", "run", "serve"]
