"""What is stuck, left over or contradictory in a snapshot, and how to mend it."""
