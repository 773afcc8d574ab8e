"""Reward -> advantage -> loss -> optimizer step on the adapter."""
