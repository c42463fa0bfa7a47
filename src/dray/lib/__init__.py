"""General data structures and the `Clock` protocol; standard library only, no I/O."""
