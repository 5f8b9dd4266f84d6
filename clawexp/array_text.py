"""Arrays of numbers as text, for JSON: a base64 of numpy's own file format, which is what vLLM writes, too."""

import base64
import binascii
import io

import numpy as np
from numpy.typing import NDArray

BYTE = 256


def text_of(array: NDArray[np.integer]) -> str:
    """Of numbers from 0 on; those below 256 take a byte each."""
    small = not array.size or int(array.max()) < BYTE
    file = io.BytesIO()
    np.save(file, array.astype(np.uint8 if small else np.uint16), allow_pickle=False)
    return base64.b64encode(file.getbuffer()).decode("ascii")


def array_of(text: str) -> NDArray[np.int16]:
    """What `text_of` was given. Raises ValueError where the text is something else."""
    try:
        array = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (binascii.Error, EOFError, OSError) as error:
        raise ValueError(f"not an array: {error}") from error
    if array.dtype.kind not in "iu" or (array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**15):
        raise ValueError(f"an array of {array.dtype}, or of numbers that are no int16 from 0 on")
    return array.astype(np.int16)
