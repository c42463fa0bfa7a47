"""The registered instances of drivers, connected for as long as somebody serves them."""
