"""Custom resources: endpoints made of definitions, the rules their objects go by, and the hand that keeps both."""
