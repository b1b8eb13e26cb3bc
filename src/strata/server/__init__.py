"""HTTP in front of the engine: the OpenAI, Anthropic and Responses APIs.

The engine runs in a process of its own; docs/decisions/0006-server.md draws the borders.
"""
