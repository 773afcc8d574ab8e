"""How good a fixed checkpoint is, held out and without hints."""
