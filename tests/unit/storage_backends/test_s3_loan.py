"""Lending the caller's memory, and taking it back."""

from __future__ import annotations

import pytest

from pagefall_storage.s3_loan import Loan, RecalledError


def test_a_loan_gives_its_memory_until_it_is_recalled() -> None:
    memory = bytearray(4)
    loan = Loan(memoryview(memory))
    with loan.use() as view:
        view[0] = 7
    assert memory[0] == 7
    assert loan.num_bytes == 4
    assert loan.recall() is False
    with pytest.raises(RecalledError), loan.use():
        raise AssertionError


def test_recalling_memory_in_use_interrupts_and_asks_to_wait() -> None:
    interrupts: list[str] = []
    loan = Loan(memoryview(bytearray(4)))
    with pytest.raises(RecalledError), loan.use(lambda: interrupts.append("now")):
        assert loan.recall() is True
    assert interrupts == ["now"]
    assert loan.recall() is False
    assert interrupts == ["now"]


def test_what_an_interrupted_use_raises_is_of_no_interest() -> None:
    loan = Loan(memoryview(bytearray(4)))

    def read() -> None:
        raise ZeroDivisionError(loan.recall())

    with pytest.raises(RecalledError), loan.use():
        read()


def test_a_use_that_fails_is_over_too() -> None:
    loan = Loan(memoryview(bytearray(4)))
    with pytest.raises(ZeroDivisionError), loan.use():
        raise ZeroDivisionError
    assert loan.recall() is False
