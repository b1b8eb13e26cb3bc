"""Trains the demo model: data, tokenizer, network, loop, export, evaluation."""
