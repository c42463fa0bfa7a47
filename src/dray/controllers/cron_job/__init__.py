"""Jobs on a schedule."""
