"""Structured device allocation: snapshot in, result out; never persists, never I/O."""
