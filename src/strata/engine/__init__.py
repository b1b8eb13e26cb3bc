"""From a request to its tokens: sessions, steps, sampling, conversations, measuring."""
