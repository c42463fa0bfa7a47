"""What is written for a Pod that has found its node."""
