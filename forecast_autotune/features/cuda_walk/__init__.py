"""CUDA text as what its launches do: read with tree-sitter, interpreted for a sample of threads, never compiled or run."""
