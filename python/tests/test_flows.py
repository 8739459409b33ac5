"""Flows of arrays, on a driver library that has no GPU behind it. Nothing here depends on how long anything takes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import headway as hw
import numpy as np
import pytest

from fake_gpu import Array, Bytes, Driver

SIZE = (3 << 20) + 5


def data(seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


@pytest.fixture
def host(driver: Driver) -> Bytes:
    return hw.pinned_empty(SIZE, np.uint8)


@pytest.fixture
def image(driver: Driver) -> Array:
    return Array(driver, (SIZE,), np.uint8)


def node() -> hw.Machine:
    return hw.machine("h200-x1")


def test_copies_of_a_flow_arrive_and_are_reported(host: Bytes, image: Array) -> None:
    with node().flow("camera", dst=image, src=host, period="1 ms", deadline="500 ms") as camera:
        assert 0 < camera.bound_ns <= 500_000_000 and camera.chunk_bytes > 0 and camera.name == "camera"
        for seed in range(5):
            host[:] = data(seed)
            report = camera.copy()
            assert (image.content() == host).all()
            assert report.response_ns > 0 and not report.given_up and report.blame
            assert report.missed == (report.response_ns > 500_000_000)
    assert image.exported == 0


def test_submitted_copies_arrive_in_order_and_keep_their_arrays(driver: Driver, host: Bytes, image: Array) -> None:
    others = [Array(driver, (SIZE,), np.uint8) for _ in range(4)]
    host[:] = data(9)
    with node().flow("camera", dst=image, src=host, period="1 ms", deadline="500 ms") as camera:
        tickets = [camera.submit(dst=other, stream=driver.stream()) for other in others]
        reports = [ticket.wait() for ticket in tickets]
        assert all(ticket.done for ticket in tickets) and tickets[0].wait() == reports[0]
    assert all((other.content() == host).all() for other in others)
    assert all(other.exported == 0 for other in others)


def test_arrays_of_a_copy_whose_ticket_nobody_keeps_are_let_go_when_the_flow_closes(driver: Driver, host: Bytes, image: Array) -> None:
    other = Array(driver, (SIZE,), np.uint8)
    host[:] = data(3)
    with node().flow("camera", dst=image, src=host, period="1 ms", deadline="1 s") as camera:
        camera.submit(dst=other)
    assert (other.content() == host).all() and other.exported == 0


def test_both_directions_and_other_copies_beside_them(driver: Driver, host: Bytes, image: Array) -> None:
    bulk, kept, over = Array(driver, (64 << 20,), np.uint8), hw.pinned_empty(64 << 20, np.uint8), threading.Event()

    def copies() -> None:
        while not over.is_set():
            hw.copy(bulk, kept)

    thread = threading.Thread(target=copies)
    thread.start()
    try:
        back = hw.pinned_empty(SIZE, np.uint8)
        machine = node()
        into = machine.flow("into", dst=image, src=host, period="1 ms", deadline="1 s")
        out = machine.flow("out", dst=back, src=image, period="1 ms", deadline="1 s")
        for seed in range(10):
            host[:] = data(seed)
            into.copy()
            out.copy()
            assert (back == host).all()
        into.close()
        out.close()
    finally:
        over.set()
        thread.join()


def test_what_cannot_be_promised_is_refused_with_proposals_and_changes_nothing(host: Bytes, image: Array) -> None:
    with node().flow("camera", dst=image, src=host, period="1 ms", deadline="1 ms") as camera:
        bound = camera.bound_ns
        with pytest.raises(hw.Refused) as refused:
            node().flow("radar", dst=image, src=host, period="1 ms", deadline="160 us")
        assert refused.value.suffers and refused.value.proposals and "radar" in str(refused.value)
        assert camera.bound_ns == bound


def test_a_closed_flow_takes_no_copies_and_its_name_is_free(host: Bytes, image: Array) -> None:
    camera = node().flow("camera", dst=image, src=host, period="1 ms", deadline="1 s")
    with pytest.raises(hw.OptionError, match="camera"):
        node().flow("camera", dst=image, src=host, period="1 ms", deadline="1 s")
    camera.close()
    camera.close()
    with pytest.raises(hw.OptionError, match="closed"):
        camera.copy()


def test_copies_that_are_none_of_the_flow_are_refused(driver: Driver, host: Bytes, image: Array) -> None:
    ordinary, larger = np.zeros(SIZE, np.uint8), hw.pinned_empty(SIZE + 1, np.uint8)
    with node().flow("strict", dst=image, src=host, period="1 ms", deadline="1 s") as flow:
        for ask in (flow.copy, flow.submit):
            with pytest.raises(hw.ArrayError, match="flow `strict` is not page-locked") as refused:
                ask(src=ordinary)
            assert "pinned_empty" in (refused.value.help or "")
        with pytest.raises(hw.HeadwayError):
            flow.copy(dst=Array(driver, (SIZE + 1,), np.uint8), src=larger)
        with pytest.raises(hw.HeadwayError):
            flow.copy(dst=host, src=image)
        with pytest.raises(hw.ArrayError):
            flow.copy(src=larger)
        assert flow.copy().response_ns > 0


def test_more_copies_than_may_wait_are_refused(driver: Driver, host: Bytes, image: Array) -> None:
    with node().flow("slow", dst=image, src=host, period="60 min", deadline="1 s") as flow:
        flow.copy()
        # One is held for an hour, and the others wait for it.
        tickets = [flow.submit()]
        with pytest.raises(hw.HeadwayError, match="`slow`.*64"):
            for _ in range(66):
                tickets.append(flow.submit())
        assert len(tickets) in (64, 65) and not tickets[-1].done
    with pytest.raises(hw.HeadwayError, match="closed"):
        tickets[-1].wait("60 s")


def test_one_machine_stands_behind_all_flows_of_a_gpu(host: Bytes, image: Array) -> None:
    with node().flow("first", dst=image, src=host, period="1 ms", deadline="1 s"), pytest.raises(hw.OptionError, match="machine"):
        hw.machine("h200-x4").flow("second", dst=image, src=host, period="1 ms", deadline="1 s")


@pytest.mark.parametrize("times", [{"period": "0 ms"}, {"deadline": "soon"}, {"deadline": -1}, {"on_miss": "explode"}, {"broker": 3}])
def test_times_and_words_that_are_none_are_refused(host: Bytes, image: Array, times: dict[str, Any]) -> None:
    (word,) = times
    with pytest.raises(hw.OptionError, match=word):
        node().flow("wrong", dst=image, src=host, **{"period": "1 ms", "deadline": "1 s", **times})


def test_bounds_can_be_asked_without_a_gpu() -> None:
    asked = [hw.FlowContract(name, "in", "6 MiB", period="33 ms", deadline="5 ms") for name in ("left", "right")]
    bounds = node().flow_bounds(asked)
    assert len(bounds) == 2 and all(0 < bound <= 5_000_000 for bound in bounds)
    assert node().flow_bounds(asked[:1])[0] <= bounds[0]
    with pytest.raises(hw.Refused):
        node().flow_bounds([*asked, hw.FlowContract("radar", "in", "1 GiB", period="20 ms", deadline="20 ms")])
    with pytest.raises(hw.OptionError):
        node().flow_bounds([hw.FlowContract("left", "sideways", "6 MiB", period="33 ms", deadline="5 ms")])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", name) for name in (None, "", "a\0b", "a\nb", "a\ud800", 256 * "a")),
        *(("direction", direction) for direction in (None, "up")),
        *(("gpu", gpu) for gpu in (-1, "0", 1 << 32, None)),
        *((field, value) for field in ("size", "period", "deadline") for value in (None, -1, "soon", 1.5, 1 << 64)),
    ],
)
def test_a_wrong_field_of_a_contract_is_named(field: str, value: Any) -> None:
    contract = replace(hw.FlowContract("left", "in", "6 MiB", period="33 ms", deadline="5 ms"), **{field: value})
    with pytest.raises(hw.OptionError, match=f"^`{field}[`=]"):
        node().flow_bounds([contract])


def test_two_contracts_of_one_name_are_told_so() -> None:
    contract = hw.FlowContract("left", "in", "6 MiB", period="33 ms", deadline="5 ms")
    with pytest.raises(hw.OptionError, match="2 contracts are called `left`"):
        node().flow_bounds([contract, contract])


@pytest.mark.parametrize("contracts", [hw.FlowContract("left", "in", "6 MiB", period="33 ms", deadline="5 ms"), None, 7, ["left"], "left"])
def test_what_is_not_several_contracts_is_named(contracts: Any) -> None:
    with pytest.raises(hw.OptionError, match="contract"):
        node().flow_bounds(contracts)


def test_bounds_of_all_flows_are_given_whatever_chunks_they_need() -> None:
    tight = hw.FlowContract("tight", "in", "6 MiB", period="33 ms", deadline="1 ms")
    loose = hw.FlowContract("loose", "in", "6 MiB", period="33 ms", deadline="20 ms")
    out = hw.FlowContract("out", "out", "6 MiB", period="33 ms", deadline="20 ms")
    bounds = node().flow_bounds([tight, loose, out])
    assert len(bounds) == 3 and bounds[0] <= 1_000_000


def test_a_contract_opens_the_flow_that_was_asked_for(host: Bytes, image: Array) -> None:
    contract = hw.FlowContract("camera", "in", SIZE, period="1 ms", deadline="500 ms")
    for asked in [contract, replace(contract, size=4 * SIZE)]:
        with node().flow(asked, dst=image, src=host) as camera:
            # All that it allows for is promised, also where these arrays are smaller.
            assert camera.name == "camera" and camera.bound_ns == node().flow_bounds([asked])[0]
            assert not camera.copy().given_up


def test_arrays_that_a_contract_is_not_for_are_refused(host: Bytes, image: Array) -> None:
    contract = hw.FlowContract("camera", "in", SIZE, period="1 ms", deadline="500 ms")
    for other in [replace(contract, size=SIZE - 1), replace(contract, direction="out"), replace(contract, gpu=1)]:
        with pytest.raises(hw.ArrayError, match="the contract of flow `camera`"):
            node().flow(other, dst=image, src=host)
    with pytest.raises(hw.OptionError, match="do not give them again"):
        node().flow(contract, dst=image, src=host, period="1 ms")
    with pytest.raises(hw.OptionError, match="needs a period and a deadline"):
        node().flow("camera", dst=image, src=host, period="1 ms")


def test_ordinary_memory_is_refused_when_a_flow_is_opened(image: Array) -> None:
    with pytest.raises(hw.ArrayError, match="page-locked"):
        node().flow("ordinary", dst=image, src=np.zeros(SIZE, np.uint8), period="1 ms", deadline="1 s")


def test_threads_that_close_one_flow_do_not_wait_for_each_other(host: Bytes, image: Array) -> None:
    for _ in range(200):
        flow = node().flow("shared", dst=image, src=host, period="1 ms", deadline="1 s")
        flow.submit()
        threads = [threading.Thread(target=flow.close) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_a_promise_holds_until_the_last_submitted_copy_has_ended(driver: Driver, host: Bytes, image: Array) -> None:
    first = node().flow("first", dst=image, src=host, period="200 us", deadline="500 ms")
    tickets = [first.submit() for _ in range(20)]
    first.close()
    assert all(ticket.done for ticket in tickets)
    again = node().flow("first", dst=image, src=host, period="200 us", deadline="500 ms")
    again.close()


def test_what_is_held_ends_with_its_flow(host: Bytes, image: Array) -> None:
    flow = node().flow("held", dst=image, src=host, period="60 min", deadline="1 s")
    flow.copy()
    held = flow.submit()
    flow.close()
    with pytest.raises(hw.CopyError, match="closed"):
        held.wait()
    with pytest.raises(hw.CopyError, match="failed"):
        held.wait()


def test_a_wait_tells_how_long_it_waited(driver: Driver, host: Bytes, image: Array) -> None:
    with node().flow("slow", dst=image, src=host, period="1 ms", deadline="1 s") as flow:
        with driver.held():
            ticket = flow.submit()
            with pytest.raises(hw.CopyTimeout) as late:
                ticket.wait("400 ms")
            assert late.value.after_ns == 400_000_000 and "`slow`" in str(late.value)
        ticket.wait()


def test_a_copy_that_ends_as_a_wait_looks_at_signals_is_no_timeout(host: Bytes, image: Array) -> None:
    # A wait looks at signals every 150 ms.
    with node().flow("look", dst=image, src=host, period="150 ms", deadline="1 s") as flow, ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            waits = [pool.submit(ticket.wait, "60 s") for ticket in [flow.submit() for _ in range(4)]]
            assert all(wait.result().response_ns > 0 for wait in waits)


def test_event_loops_wait_without_threads_and_may_give_up(driver: Driver, host: Bytes, image: Array) -> None:
    async def main(flow: hw.Flow) -> None:
        before = threading.active_count()
        with driver.held():
            ticket = flow.submit()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(ticket), 0.05)
            assert not ticket.done and threading.active_count() == before
        report = await ticket
        assert report == await ticket == ticket.wait() and threading.active_count() == before
        flow.close()
        with pytest.raises(hw.CopyError, match="closed"):
            await held

    async def wait(ticket: hw.FlowTicket) -> None:
        await ticket

    host[:] = data(3)
    with node().flow("held", dst=image, src=host, period="60 min", deadline="1 s") as other:
        other.copy()
        held = other.submit()
        other.close()
        with node().flow("loop", dst=image, src=host, period="1 ms", deadline="1 s") as flow:
            asyncio.run(main(flow))
    assert (image.content() == host).all()
