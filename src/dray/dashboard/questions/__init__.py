"""What the page asks besides the stream: which devices a class has, and why something waits."""
