"""The rules of the kinds: each module judges documents of one group and returns what is wrong with them."""
