"""Lists of mutations: (source file, old text that occurs once, new text, pytest target that must fail)."""
