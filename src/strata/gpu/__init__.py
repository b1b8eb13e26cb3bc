"""The model on a graphics card: memory plan, packed weights, kernels and decode windows.

The only package that imports torch and triton. Arithmetic is that of docs/numerics.md.
"""

import os

# Triton 3.4 to 3.7 place the barriers of Hopper's matrix instruction wrongly (its issue 11366):
# attention of half cells and the scan of a delta net came out wrong, or read where nothing is. The
# instruction before it gives the products below right, and is as fast on tiles of this size.
os.environ.setdefault("DISABLE_MMA_V3", "1")  # noqa: TID251 - the compiler's only switch
