"""Two items that differ have two names."""

import numpy as np
import pytest

from mini_vllm.multimodal.hasher import MultiModalHasher


def name(value):
    return MultiModalHasher.hash_kwargs(value=value)


def test_what_differs_in_anything_has_another_name():
    array = np.arange(6)
    values = [
        array, array.reshape(2, 3), array.reshape(3, 2), array.astype(np.int32), array + 1, array.tolist(),
        "1", b"1", 1, 1.0, True, None, "None", [1, [2]], [[1], 2], {"a": 1}, {"b": 1}, ["a", "1"], ["a1"], [],
    ]  # fmt: skip
    assert len({name(value) for value in values}) == len(values)


def test_the_same_has_the_same_name_however_it_lies_in_memory():
    array = np.arange(12).reshape(3, 4)
    assert name(array) == name(np.asfortranarray(array)) == name(array.copy()) and len(name(array)) == 64
    assert name({"a": 1, "b": (2,)}) == name({"b": [2], "a": 1})
    assert name(array) != MultiModalHasher.hash_kwargs(other=array)


def test_what_cannot_be_hashed_is_refused_by_name():
    with pytest.raises(TypeError, match=r"kwargs\['value'\]\[1\] must be an array, .*, got <object"):
        name([1, object()])
