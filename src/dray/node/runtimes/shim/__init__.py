"""The small process that stays with a container when the agent does not: its output, its end, its signals."""
