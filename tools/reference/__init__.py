"""What the reference pages are made of: each module turns one part of the code into Markdown."""
