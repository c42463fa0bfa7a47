"""One module per process; alone reads argv and the environment, picks back ends and wires the rooms."""
