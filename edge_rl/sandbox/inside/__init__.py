"""What runs on the other side of the wall: standard library only, and nothing of the rest of the package."""
