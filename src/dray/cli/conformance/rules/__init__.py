"""Rules for what a driver sends: each function yields the violations."""
