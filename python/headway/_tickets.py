"""Tickets in event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING

from headway._native import Ticket

if TYPE_CHECKING:
    from headway._flow import FlowTicket

# Between two looks whether a copy has ended.
_NAP_MIN_S = 0.0002
_NAP_MAX_S = 0.005


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
        return _looked_at(ticket).__await__()
    return future.__await__()


async def _looked_at(ticket: Ticket) -> Ticket:
    await until_done(ticket)
    return ticket


async def until_done(ticket: Ticket | FlowTicket) -> None:
    """Looks from time to time, for tickets of which no thread tells."""
    nap_s = _NAP_MIN_S
    while not ticket.done:
        await asyncio.sleep(nap_s)
        nap_s = min(2 * nap_s, _NAP_MAX_S)
