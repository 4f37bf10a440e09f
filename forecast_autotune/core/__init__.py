"""The nouns. Pure Python values: nothing here imports torch, triton, numpy or sqlite3, or reads the environment."""
