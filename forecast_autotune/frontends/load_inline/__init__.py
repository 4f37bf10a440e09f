"""C++ and CUDA extensions with a space of variants."""
