"""One module per process. Only this package reads argv and the environment, selects backends and wires components."""
