"""All dialects that the boundary speaks, and whose a request is."""

from clawexp.capture.dialects.anthropic_messages import AnthropicMessages
from clawexp.capture.dialects.dialect import Asked, Counting, Dialect
from clawexp.capture.dialects.gemini import Gemini
from clawexp.capture.dialects.openai_chat import OpenAIChat
from clawexp.capture.dialects.openai_responses import OpenAIResponses

DIALECTS: tuple[Dialect, ...] = (AnthropicMessages(), Gemini(), OpenAIResponses(), OpenAIChat())
"""The first that serves a request answers it: some paths belong to several, and Anthropic's clients say who they
are."""
COUNTING: tuple[Counting, ...] = tuple(each for each in DIALECTS if isinstance(each, Counting))
"""Of them, looked up once: a check against a protocol takes as long as reading a short request."""


def dialect_of(asked: Asked) -> tuple[Dialect, bool]:
    """The dialect in which a request is answered, and whether that serves it.

    What none serves is refused in the words that its client reads; where that shows nowhere, in OpenAI's.
    """
    for dialect in DIALECTS:
        if dialect.serves(asked):
            return dialect, True
    return next((each for each in DIALECTS if each.resembles(asked)), DIALECTS[-1]), False
