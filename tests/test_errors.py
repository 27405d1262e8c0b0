"""Every error crosses processes, carries its exit code and reads as it was written."""

from __future__ import annotations

import inspect
import pickle

import pytest

from bigfs.core import errors
from bigfs.core.errors import BigfsError

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, BigfsError)
]

CODES = {
    "BigfsError": 4,
    "InputError": 2,
    "RowError": 2,
    "InputTypeError": 2,
    "ConfigError": 2,
    "CorruptStoreError": 2,
    "NumericalError": 5,
    "ConvergenceError": 5,
    "MemoryLimitError": 3,
    "ClusterError": 4,
    "StorageError": 4,
    "RunLockedError": 75,
}

BUILTINS = {
    "InputError": ValueError,
    "RowError": ValueError,
    "InputTypeError": TypeError,
    "ConfigError": ValueError,
    "CorruptStoreError": ValueError,
    "NumericalError": ArithmeticError,
    "ConvergenceError": ArithmeticError,
    "MemoryLimitError": MemoryError,
    "ClusterError": RuntimeError,
    "StorageError": OSError,
    "RunLockedError": RuntimeError,
}


def test_every_error_is_in_the_table_of_exit_codes():
    assert {error.__name__: error.exit_code for error in CLASSES} == CODES


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_error_survives_pickling(error):
    raised = error("m must be an int in [1, 200]. Got 500.")
    raised.add_note("in stage 'scores'")
    copy = pickle.loads(pickle.dumps(raised))
    assert type(copy) is error
    assert str(copy) == "m must be an int in [1, 200]. Got 500."
    assert copy.exit_code == error.exit_code
    assert copy.__notes__ == ["in stage 'scores'"]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_error_is_caught_as_its_builtin(error):
    with pytest.raises(BUILTINS.get(error.__name__, Exception), match="what, where"):
        raise error("what, where, why")


@pytest.mark.cluster
@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_error_comes_back_from_a_worker(error, client):
    future = client.submit(_fail, error, "the message", pure=False)
    raised = future.exception()
    assert type(raised) is error
    assert str(raised) == "the message"


def _fail(error: type[BigfsError], message: str) -> None:
    raise error(message)


def test_a_row_among_those_that_are_left_goes_by_its_own_number() -> None:
    for dropped in ([], [0], [9, 3, 4, 0], [11]):
        left = [row for row in range(12) if row not in dropped]
        assert [errors.row_in_the_original(i, dropped) for i in range(len(left))] == left
