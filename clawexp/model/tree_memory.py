"""How many bytes a pass over trees holds, from the decoder's shape: what `tree_pass: auto` decides by."""

from clawexp.model.checkpoint import Shape


def token_bytes(shape: Shape, itemsize: int, grad: bool, checkpointing: bool) -> int:
    """Of one token, `itemsize` bytes a number: what autograd keeps of it, or without `grad` what one layer makes of it.

    With `checkpointing`, one layer is whole at a time, and of each what it begins with, and what the last one makes.
    """
    layer = _layer_floats(shape)
    if not grad:
        return layer * itemsize
    if checkpointing:
        return (layer + (shape.layers + 1) * shape.hidden) * itemsize
    return shape.layers * layer * itemsize


def _layer_floats(shape: Shape) -> int:
    """Saved for the backward pass, by token: both norms' inputs and outputs, projections before and after rotation,
    queries, what they saw, twice in another order, and the four of the gated product."""
    projected = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    rotated = (shape.heads + shape.kv_heads) * shape.head_dim
    attention = 4 * shape.hidden + projected + rotated + 3 * shape.heads * shape.head_dim
    if (experts := shape.experts) is None:
        return attention + 4 * shape.intermediate
    # For each chosen expert, beside the gated product, its input, and its output in two orders; and all chances.
    return attention + experts.chosen * (4 * experts.intermediate + 3 * shape.hidden) + experts.number
