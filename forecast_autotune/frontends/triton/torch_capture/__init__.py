"""Kernels of ours under `torch.compile`: torch captures them with the one decided config."""
