import base64
import io

import numpy as np
import pytest

from clawexp.array_text import array_of, text_of


@pytest.mark.parametrize("most", [255, 32_767])
def test_arrays_come_back_as_they_were(most: int) -> None:
    array = np.array([[[0, 1], [most, 3]]] * 5, np.int16)
    found = array_of(text_of(array))
    assert found.dtype == np.int16
    assert np.array_equal(found, array)
    assert array_of(text_of(array[:0])).shape == (0, 2, 2)


def test_small_numbers_take_a_byte_each() -> None:
    array = np.full((1000, 4, 2), 127, np.int16)
    assert len(text_of(array)) < 1.4 * array.size + 200


def test_what_is_no_such_array_is_refused() -> None:
    file = io.BytesIO()
    np.save(file, np.array([0.5]))
    for text in ("!", "abcd", base64.b64encode(file.getvalue()).decode(), text_of(np.array([40_000], np.uint16))):
        with pytest.raises(ValueError, match=r"array|pickled"):
            array_of(text)
