"""Tickets in event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from headway._native import Ticket


def wait_in_loop(ticket: Ticket) -> Generator[object, None, Ticket]:
    """What `await ticket` runs: the loop goes on until the copy has ended. Whoever gives up waiting leaves the copy as it is."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Ticket] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(ticket)
        else:
            future.set_exception(error)

    def ended(error: BaseException | None) -> None:
        # A loop that was closed waits for nothing.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    if ticket.done:
        future.set_result(ticket)
    elif not ticket._when_done(ended):  # pyright: ignore[reportPrivateUsage]
        # The interpreter ends: no thread tells of anything.
        return _look_at(ticket).__await__()
    return future.__await__()


async def _look_at(ticket: Ticket) -> Ticket:
    while not ticket.done:
        await asyncio.sleep(0.001)
    return ticket
