"""Commands for people; they talk to the API like any user."""
