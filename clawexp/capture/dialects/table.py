"""All dialects that the boundary speaks."""

from clawexp.capture.dialects.anthropic_messages import AnthropicMessages
from clawexp.capture.dialects.dialect import Dialect
from clawexp.capture.dialects.gemini import Gemini
from clawexp.capture.dialects.openai_chat import OpenAIChat
from clawexp.capture.dialects.openai_responses import OpenAIResponses

DIALECTS: tuple[Dialect, ...] = (AnthropicMessages(), Gemini(), OpenAIResponses(), OpenAIChat())
"""The first that serves a request answers it: some paths belong to several, and Anthropic's clients say who they
are. Where none does, the last one refuses."""
