from __future__ import annotations

import asyncio

import pytest

from pagefall.actors.base import Actor, ActorCrash
from pagefall.actors.mailbox import Mailbox, MailboxClosed

pytestmark = pytest.mark.anyio


class Adder(Actor[int]):
    """Adds numbers up; zero is a bug."""

    total = 0

    async def _run(self) -> None:
        while not self._mailbox.is_exhausted:
            await self._mailbox.wait()
            for number in self._mailbox.take_all():
                self.total += 1 // number * number


async def test_a_closed_actor_does_what_it_has_accepted_and_ends() -> None:
    mailbox = Mailbox[int](10)
    adder = Adder(mailbox)
    mailbox.address.try_send(1)
    mailbox.address.try_send(1)
    adder.close()
    await adder.run()
    assert adder.total == 2


async def test_a_crash_names_the_actor_and_the_error_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    mailbox = Mailbox[int](10)
    mailbox.address.try_send(0)
    with pytest.raises(ActorCrash, match=r"^Adder crashed: ZeroDivisionError: .*$") as crash:
        await Adder(mailbox).run()
    assert isinstance(crash.value.__cause__, ZeroDivisionError)
    assert "Traceback" in caplog.text


async def test_senders_of_a_crashed_actor_are_not_left_waiting() -> None:
    mailbox = Mailbox[int](1)
    mailbox.address.try_send(0)
    sending = [asyncio.create_task(mailbox.address.send(number)) for number in (1, 1)]
    await asyncio.sleep(0)
    with pytest.raises(ActorCrash):
        await Adder(mailbox).run()
    results = await asyncio.gather(*sending, return_exceptions=True)
    assert any(isinstance(result, MailboxClosed) for result in results)


async def test_a_cancelled_actor_is_cancelled_and_its_mailbox_closed() -> None:
    mailbox = Mailbox[int](1)
    running = asyncio.create_task(Adder(mailbox).run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(MailboxClosed):
        mailbox.address.try_send(1)


async def test_one_crash_ends_the_actors_beside_it() -> None:
    healthy, broken = Mailbox[int](1), Mailbox[int](1)
    broken.address.try_send(0)
    started: list[asyncio.Task[None]] = []

    async def run_both() -> None:
        async with asyncio.TaskGroup() as actors:
            started.extend(actors.create_task(Adder(mailbox).run()) for mailbox in (healthy, broken))

    with pytest.raises(ExceptionGroup) as failures:
        await run_both()
    assert started[0].cancelled()
    assert failures.group_contains(ActorCrash)
