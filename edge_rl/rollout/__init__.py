"""Prompt -> group of rollouts, chunk by chunk, with tool calls. Knows no reward and no training."""
