"""All dialects that the boundary speaks."""

from clawexp.capture.dialects.dialect import Dialect
from clawexp.capture.dialects.openai_chat import OpenAIChat

DIALECTS: tuple[Dialect, ...] = (OpenAIChat(),)
"""The first also answers where no dialect serves the path."""
