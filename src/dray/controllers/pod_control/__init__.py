"""What controllers that keep Pods share: facts about Pods, whose they are, and how they are made and removed."""
