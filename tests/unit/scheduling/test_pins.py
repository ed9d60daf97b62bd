"""Prefixes that clients asked to keep."""

from __future__ import annotations

from tests.scheduling_driver import Driver, prompt

DOCUMENT = prompt(1, 41)


def churn(driver: Driver) -> None:
    """More than the pool holds."""
    for index in range(4):
        driver.submit(f"churn {driver.now} {index}", prompt(100 + index + int(driver.now), 120), max_tokens=1)
        driver.run()


def num_cached(driver: Driver, name: str) -> int:
    driver.submit(name, DOCUMENT, max_tokens=1)
    driver.run()
    return driver.cached_tokens[name]


def make() -> Driver:
    return Driver(num_pages=64)


def test_a_prefix_is_kept_for_its_time_and_no_longer() -> None:
    driver = make()
    driver.submit("a", DOCUMENT, max_tokens=1, pins=((22, 1000.0),))
    driver.run()
    churn(driver)
    assert num_cached(driver, "kept") == 20  # whole pages only
    driver.now += 1000
    churn(driver)
    assert num_cached(driver, "gone") == 0
    assert driver.state.pins.num_pages == 0


def test_without_a_pin_it_would_have_gone() -> None:
    driver = make()
    driver.submit("a", DOCUMENT, max_tokens=1)
    driver.run()
    churn(driver)
    assert num_cached(driver, "gone") == 0


def test_a_prefix_kept_again_is_kept_for_the_longer_time_and_counted_once() -> None:
    driver = make()
    for name, seconds in (("a", 5.0), ("b", 1000.0), ("c", 5.0)):
        driver.submit(name, DOCUMENT, max_tokens=1, pins=((40, seconds),))
        driver.run()
    assert driver.state.pins.num_pages == 10
    driver.now += 500
    churn(driver)
    assert num_cached(driver, "kept") == 40


def test_what_is_kept_never_takes_more_than_its_share_and_the_shortest_goes_first() -> None:
    driver = make()  # 16 of 64 pages
    for index, seconds in enumerate((1000.0, 500.0, 800.0)):
        driver.submit(str(index), prompt(10 + index, 29), max_tokens=1, pins=((28, seconds),))
        driver.run()
    assert driver.state.pins.num_pages == 14
    churn(driver)
    for index, num_tokens in ((0, 28), (2, 28), (1, 0)):
        name = f"again {index}"
        driver.submit(name, prompt(10 + index, 29), max_tokens=1)
        driver.run()
        assert driver.cached_tokens[name] == num_tokens


def test_pins_outlive_splits_and_a_flush() -> None:
    driver = make()
    driver.submit("a", DOCUMENT, max_tokens=1, pins=((40, 1000.0),))
    driver.run()
    driver.submit("b", [*DOCUMENT[:22], *prompt(3, 10)], max_tokens=1)
    driver.run()
    driver.state.cache.flush(driver.now)
    driver.state.cache.check()
    assert driver.state.stats().device_pages.cached == 10
    assert num_cached(driver, "kept") == 40
    driver.state.pins.clear()
    driver.state.cache.flush(driver.now)
    driver.state.cache.check()
    assert driver.state.stats().device_pages.free == 64


def test_a_prompt_shorter_than_a_page_has_nothing_to_keep() -> None:
    driver = make()
    driver.submit("a", [1, 2, 3], max_tokens=1, pins=((3, 1000.0), (0, 10.0)))
    driver.run()
    assert driver.state.pins.num_pages == 0


def test_a_request_that_needs_the_whole_pool_gets_it() -> None:
    driver = make()
    driver.submit("a", DOCUMENT, max_tokens=1, pins=((40, 1000.0),))
    driver.run()
    driver.submit("large", prompt(7, 250), max_tokens=4)
    driver.run()
    assert driver.state.pins.num_pages == 0


def test_nobody_is_preempted_for_what_is_kept() -> None:
    driver = make()
    driver.submit("a", DOCUMENT, max_tokens=1, pins=((40, 1000.0),))
    driver.run()
    driver.submit("long answer", prompt(7, 20), max_tokens=230)
    driver.run()
    assert driver.state.counters.num_preemptions == 0
    assert driver.state.pins.num_pages == 0
