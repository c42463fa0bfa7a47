"""The binding cycle: what happens to a placed Pod until the API knows."""
