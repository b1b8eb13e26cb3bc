"""Text on its way in and out: token ids, chat templates, streamed text and stop strings.

Knows nothing of tensors, sessions or sampling. Called by ``engine`` and ``cli``.
"""

from strata.text.chat_template import ChatTemplate
from strata.text.detokenizer import Detokenizer, StopMatcher
from strata.text.tokenizer import Span, Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Span", "StopMatcher", "Tokenizer"]
