"""Strata: a 125-billion-parameter mixture-of-experts model on an ordinary computer."""
