from __future__ import annotations

import asyncio

import pytest

from pagefall.actors.mailbox import Mailbox, MailboxClosed

pytestmark = pytest.mark.anyio


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_messages_are_taken_in_the_order_they_were_sent() -> None:
    mailbox = Mailbox[int](10)
    for number in range(3):
        assert mailbox.address.try_send(number)
    assert mailbox.take_all() == [0, 1, 2]
    assert mailbox.take_all() == []


async def test_a_full_mailbox_refuses_and_keeps_what_it_has() -> None:
    mailbox = Mailbox[int](2)
    assert [mailbox.address.try_send(number) for number in range(3)] == [True, True, False]
    assert mailbox.take_all() == [0, 1]
    assert mailbox.address.try_send(3)


async def test_a_sender_waits_until_there_is_room() -> None:
    mailbox = Mailbox[int](1)
    await mailbox.address.send(0)
    sending = asyncio.create_task(mailbox.address.send(1))
    await settle()
    assert not sending.done()
    assert mailbox.take_all() == [0]
    await sending
    assert mailbox.take_all() == [1]


async def test_many_waiting_senders_never_overfill() -> None:
    mailbox = Mailbox[int](2)
    sending = [asyncio.create_task(mailbox.address.send(number)) for number in range(7)]
    taken: list[int] = []
    while len(taken) < 7:
        await mailbox.wait()
        await settle()
        batch = mailbox.take_all()
        assert len(batch) <= 2
        taken += batch
    assert sorted(taken) == list(range(7))
    await asyncio.gather(*sending)


async def test_a_cancelled_sender_has_not_delivered() -> None:
    mailbox = Mailbox[int](1)
    await mailbox.address.send(0)
    sending = asyncio.create_task(mailbox.address.send(1))
    await settle()
    sending.cancel()
    await settle()
    assert mailbox.take_all() == [0]
    assert mailbox.take_all() == []


async def test_a_reader_cancelled_while_waiting_loses_nothing() -> None:
    mailbox = Mailbox[int](1)
    waiting = asyncio.create_task(mailbox.wait())
    await settle()
    mailbox.address.try_send(0)
    waiting.cancel()
    await settle()
    assert mailbox.take_all() == [0]


async def test_a_closed_mailbox_refuses_but_what_is_inside_can_be_taken() -> None:
    mailbox = Mailbox[int](1)
    mailbox.address.try_send(0)
    mailbox.close()
    with pytest.raises(MailboxClosed):
        mailbox.address.try_send(1)
    was_exhausted = mailbox.is_exhausted
    await mailbox.wait()
    assert mailbox.take_all() == [0]
    assert (was_exhausted, mailbox.is_exhausted) == (False, True)
    await mailbox.wait()


async def test_closing_wakes_the_senders_that_wait() -> None:
    mailbox = Mailbox[int](1)
    mailbox.address.try_send(0)
    sending = asyncio.create_task(mailbox.address.send(1))
    await settle()
    mailbox.close()
    with pytest.raises(MailboxClosed):
        await sending


async def test_an_address_that_leaves_places_is_refused_while_others_are_not() -> None:
    mailbox = Mailbox[int](3)
    polite = mailbox.address_leaving(2)
    assert polite.try_send(0)
    assert not polite.try_send(1)
    assert mailbox.address.try_send(2)
    assert mailbox.address.try_send(3)
    assert not mailbox.address.try_send(4)
    assert mailbox.take_all() == [0, 2, 3]


async def test_a_sender_that_leaves_places_waits_until_all_was_taken_and_delivers_once() -> None:
    mailbox = Mailbox[int](3)
    polite = mailbox.address_leaving(2)
    await polite.send(0)
    sending = [asyncio.create_task(polite.send(number)) for number in (1, 2)]
    await settle()
    assert not any(task.done() for task in sending)
    taken = []
    for _ in range(3):
        taken.append(mailbox.take_all())
        await settle()
    assert taken == [[0], [1], [2]]
    await asyncio.gather(*sending)


async def test_closing_wakes_the_senders_that_leave_places() -> None:
    mailbox = Mailbox[int](2)
    polite = mailbox.address_leaving(1)
    await polite.send(0)
    sending = asyncio.create_task(polite.send(1))
    await settle()
    mailbox.close()
    with pytest.raises(MailboxClosed):
        await sending
