"""The SDK a driver author imports."""
