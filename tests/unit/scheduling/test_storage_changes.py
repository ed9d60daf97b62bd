"""A store that is attached, replaced or detached while requests run, and what was asked of the one before."""

from __future__ import annotations

import pytest
from tests.tier_driver import Pending, TierDriver
from tests.unit.scheduling.test_lower_tiers import DOCUMENT, answer, ask, make

from pagefall.config import WritePolicy
from pagefall.messages import AttachStorage, Backup, DetachStorage, Fetch, Lookup, ToController

ATTACH = AttachStorage(backend="memory", extra_config={})
DETACH = DetachStorage()


def change(driver: TierDriver, message: AttachStorage | DetachStorage, *, fails: bool = False) -> None:
    """Carries it out, and nothing else."""
    driver.change_storage(message)
    while driver.is_changing:
        driver.perform(pending(driver, AttachStorage, DetachStorage), fails=fails)


def pending(driver: TierDriver, *types: type[ToController]) -> Pending:
    """The oldest of these that is under way."""
    return next(each for each in driver.collect() if isinstance(each.message, types))


def until(driver: TierDriver, kind: type[ToController]) -> Pending:
    """Carries out transfers and steps until such a one is under way."""
    for _ in range(100):
        found = [each for each in driver.collect() if isinstance(each.message, kind)]
        if found:
            return found[0]
        if driver.pending:
            driver.perform(driver.pending[0])
        else:
            driver.step()
    raise AssertionError(f"no {kind.__name__}")


@pytest.mark.parametrize("write", ["write_through", "write_through_selective"])
def test_what_the_host_has_goes_to_a_store_that_is_attached_later(write: WritePolicy) -> None:
    driver = make(storage=False, write=write)
    for name in ("cold", "again", "and again"):
        answer(driver, name)
    assert not driver.store
    change(driver, ATTACH)
    assert [each.is_attached for each in driver.changes] == [True]
    driver.settle()
    assert len(driver.store) == 10
    driver.flush("device", "host")
    assert answer(driver, "storage") == (0, 0, 40)


def test_write_back_writes_to_a_store_that_is_attached_later_what_the_host_would_lose() -> None:
    driver = make(storage=False, write="write_back", num_pages=12, num_host_pages=12)
    change(driver, ATTACH)
    for start in range(6):
        answer(driver, str(start), [start, *DOCUMENT[1:]])
    assert driver.store


def test_a_store_that_is_detached_is_not_asked_any_more() -> None:
    driver = make()
    answer(driver, "cold")
    change(driver, DETACH)
    assert [(each.is_attached, each.error) for each in driver.changes] == [(False, None)]
    driver.flush("device", "host")
    assert answer(driver, "computed") == (0, 0, 0)
    driver.flush("device", "host", "storage")
    assert driver.num_flushed[-1]["storage"] == 0


def test_once_a_store_is_detached_nothing_counts_as_stored_for_who_asks_later() -> None:
    driver = make()
    answer(driver, "cold")
    assert driver.state.cache.keys().storage
    change(driver, DETACH)
    assert driver.state.cache.keys().storage == b""
    assert driver.state.cache.keys().device, "what is nearer stays"
    driver.check_changes()


def test_a_store_in_place_of_another_is_written_anew() -> None:
    driver = make()
    answer(driver, "cold")
    former = driver.store
    change(driver, ATTACH)
    driver.settle()
    assert driver.store is not former
    assert driver.store.keys() == former.keys()


def test_a_store_that_cannot_be_attached_changes_nothing() -> None:
    driver = make()
    answer(driver, "cold")
    change(driver, ATTACH, fails=True)
    assert [(each.is_attached, each.error) for each in driver.changes] == [(True, "broken")]
    driver.flush("device", "host")
    assert answer(driver, "storage") == (0, 0, 40)


def test_a_backup_to_the_former_store_says_nothing_of_the_present_one() -> None:
    driver = make()
    ask(driver, "cold")
    backup = until(driver, Backup)
    former = driver.store
    change(driver, ATTACH)
    driver.perform(backup)
    assert former
    assert driver.stored_nodes() == []
    driver.run()
    assert driver.store.keys() > former.keys()


def test_a_backup_that_does_not_end_holds_up_none_to_the_present_store() -> None:
    driver = make()
    ask(driver, "cold")
    stuck = until(driver, Backup)
    change(driver, ATTACH)
    while (others := [each for each in driver.collect() if each is not stuck]) or not driver.state.is_idle:
        if others:
            driver.perform(others[0])
        else:
            driver.step()
    assert len(driver.store) == 10
    driver.perform(stuck)
    assert driver.tiers.is_quiet


def test_backups_that_wait_are_forgotten_with_their_store() -> None:
    driver = make()
    ask(driver, "cold")
    backup = until(driver, Backup)
    while not driver.tiers.pending_backups:
        others = [each for each in driver.collect() if each is not backup]
        if others:
            driver.perform(others[0])
        else:
            driver.step()
    change(driver, DETACH)
    driver.perform(backup)
    driver.run()
    assert not [each for each in driver.collect() if isinstance(each.message, Backup)]


@pytest.mark.parametrize("message", [ATTACH, DETACH])
def test_a_fetch_under_way_is_still_the_requests(message: AttachStorage | DetachStorage) -> None:
    driver = make(prefetch="wait_complete")
    answer(driver, "cold")
    driver.flush("device", "host")
    ask(driver, "hit")
    fetch = until(driver, Fetch)
    driver.perform(fetch, num_pages=3)
    num_reserved = driver.tiers.host.num_reserved
    change(driver, message)
    assert driver.tiers.host.num_reserved == num_reserved, "its pages may be written to until it has ended"
    driver.perform(fetch)
    assert driver.stored_nodes() == []
    driver.run()
    for keys in driver.stored_nodes():
        assert keys <= driver.ever_stored
        assert message is ATTACH
    assert driver.answers["hit"] == driver.model.answer_alone(DOCUMENT, 2)
    assert driver.state.stats().num_storage_tokens == 40
    assert driver.tiers.host.num_reserved == 0


@pytest.mark.parametrize("message", [ATTACH, DETACH])
def test_what_a_former_store_has_is_not_fetched(message: AttachStorage | DetachStorage) -> None:
    driver = make(prefetch="wait_complete")
    answer(driver, "cold")
    driver.flush("device", "host")
    ask(driver, "late")
    lookup = until(driver, Lookup)
    change(driver, message)
    driver.perform(lookup)
    assert not [each for each in driver.collect() if isinstance(each.message, Fetch)]
    driver.run()
    assert driver.answers["late"] == driver.model.answer_alone(DOCUMENT, 2)
    assert driver.state.stats().num_storage_tokens == 0


def test_what_was_measured_of_a_former_store_is_forgotten() -> None:
    driver = make()
    answer(driver, "cold")
    driver.flush("device", "host")
    unknown = driver.tiers.storage_link.estimate(10**9)
    driver.tiers.storage_link.observe(first_seconds=1.0, seconds=100.0, num_bytes=10**6)
    change(driver, ATTACH)
    assert driver.tiers.storage_link.estimate(10**9) == unknown
