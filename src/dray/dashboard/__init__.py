"""Pages for people: static files, and the few answers they need besides the API, with the reader's own rights."""
