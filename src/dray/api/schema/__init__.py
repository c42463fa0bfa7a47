"""What fields every kind has, and of what type: the one description all codecs and patches work from."""
