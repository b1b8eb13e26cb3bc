"""Model files: block formats, GGUF reading and writing, and the index of a model's tensors.

Owns bytes on disk and what they mean. Knows nothing of the model's mathematics.
"""
