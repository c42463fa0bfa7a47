"""What the server does with each resource: definitions, strategies, and the tables people see."""
