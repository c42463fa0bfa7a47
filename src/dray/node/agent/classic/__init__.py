"""Classic claims as one of the agent's resource managers."""
