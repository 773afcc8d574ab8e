"""Mathematical notation: characters, tokens, trees, exact values, equality. Knows no completion and no verdict.

Model text reaches a computer algebra system only as a tree that `parser` built from a closed list of tokens; nothing here
evaluates text. Everything but `symbolic` has bounds on size and depth and runs in the calling process.
"""
