"""One pass over a Triton kernel's syntax tree: `Walker` walks it, `Notes` holds what it has met."""
