"""Talking to language models: what they are asked, in which words, and how their answers become eight bins."""
