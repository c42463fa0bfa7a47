"""The shim: a small process per container that outlives the agent, and the runtimes' side of it."""
