"""Pieces of the model's turns, as some APIs list them one by one -> whole turns."""

from collections.abc import Iterable

from clawexp.capture.message import Message


def joined(pieces: Iterable[Message]) -> list[Message]:
    """Pieces of one turn become one message; whatever is between turns keeps its place."""
    turns: list[Message] = []
    for piece in pieces:
        if turns and _continues(turns[-1], piece):
            turn = turns[-1]
            turns[-1] = Message(
                role="assistant",
                content=turn.content + piece.content,
                reasoning=turn.reasoning + piece.reasoning,
                tool_calls=turn.tool_calls + piece.tool_calls,
            )
        else:
            turns.append(piece)
    return turns


def _continues(turn: Message, piece: Message) -> bool:
    """Whether the piece may follow in the same turn: first the model thinks, then it speaks, then it calls.

    Where the order starts over, so does the turn.
    """
    if turn.role != "assistant" or piece.role != "assistant":
        return False
    only_calls = bool(piece.tool_calls) and not piece.content and not piece.reasoning
    return only_calls or not (turn.content or turn.tool_calls)
