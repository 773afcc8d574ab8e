"""edge_rl: make a small language model better at your task on your one GPU, and prove it.

Sample -> Prompt -> Group of K Rollouts -> Verdict, Reward -> advantage -> one step on the adapter -> evaluation -> GGUF.
"""
