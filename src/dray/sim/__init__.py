"""A cluster taken from a snapshot: looked at, explained, played forward. Never writes to where it came from."""
