"""The model on a graphics card: memory plan, packed weights, kernels and decode windows.

The only package that imports torch and triton. Arithmetic is that of docs/numerics.md.
"""
