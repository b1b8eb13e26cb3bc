"""Seeded generators of synthetic examples, and what a right answer to each is."""
