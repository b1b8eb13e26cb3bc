"""The model on the processor: packed weights, one conversation's state, its session.

The only folder that imports the compiled extension. Knows nothing of text or requests.
"""
