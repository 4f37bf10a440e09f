"""Training language models to forecast: labelled pairs, what is left out, objectives, and how well it went."""
