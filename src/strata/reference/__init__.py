"""The model as short numpy: specification, oracle of the kernels, and nothing clever."""
