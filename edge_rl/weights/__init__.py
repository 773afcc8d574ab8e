"""Everything that reads or writes weights: base, adapters, merged models, GGUF and the check in llama.cpp."""
