"""Mode `online`: a key is launched at once on the best known, and the rest is learned from its own calls."""
