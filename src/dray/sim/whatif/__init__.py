"""What would happen after a change: to the snapshot first, then played forward by the real scheduler."""
