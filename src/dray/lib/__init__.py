"""Tools with no opinion: data structures and the `Clock` protocol; standard library only, never I/O."""
