"""The server from its start to its end: address, workers, and the clients that are too slow."""

import asyncio
import contextlib
import functools
import json
import socket
import time
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from twolayer.core import interrupts
from twolayer.core.errors import InvalidInput, shown
from twolayer.explore.access import Access, new_token, stated_origin
from twolayer.explore.form import form, initial_spec
from twolayer.explore.messages import Tables
from twolayer.explore.pool import Pool
from twolayer.explore.server import OF_ADDRESS, make_app

# Seconds: for a connection without a whole request, for the last answers when the server ends, between two looks.
IDLE, LAST, PACE = 15.0, 1.0, 0.2
CONNECTIONS = 1000


class _Server(uvicorn.Server):
    """A server that leaves Ctrl-C to the command line."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    host: str,
    port: int,
    initial: Tables | None,
    is_opened: bool,
    announce: Callable[[Access], None],
    state: str = "",
) -> None:
    """Serve the explorer until it is asked to stop (`twolayer.core.interrupts`).

    Parameters
    ----------
    host, port
        Where to listen; port 0 for any that is free.
    initial
        The tables of the specification with which the page begins.
    is_opened
        Whether a browser is opened at the link.
    announce
        Called with the address and the token as soon as the server listens.
    state
        What the link of the page says after ``#``; empty for the specification alone.
    """
    token, origin = new_token(), stated_origin()
    listening = _listen(host, port)
    access = Access(host, listening.getsockname()[1], token, origin, state)
    with listening:
        announce(access)
        initial = initial or initial_spec()
        asyncio.run(serve_with(Pool(first=initial), listening, access, initial, is_opened))


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or one sentence why there is none."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"The explorer cannot listen at {shown(host)}, port {port}: {reason}.") from None


async def serve_with(
    pool: Pool, listening: socket.socket, access: Access, initial: Tables, is_opened: bool = False
) -> None:
    """Serve the explorer with the workers of a pool until it is asked to stop."""
    async with pool:
        servers: list[uvicorn.Server] = []

        def is_full() -> bool:
            return len(servers[0].server_state.connections) > CONNECTIONS

        app = make_app(pool, access, functools.partial(_form, initial), is_full)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(IDLE),
            timeout_graceful_shutdown=int(LAST),
        )
        server = _Server(config)
        servers.append(server)
        # Connections through a proxy all have its address: it is the one to bound those of each visitor.
        watch = asyncio.create_task(_watch(server, is_bounded=not access.origin))
        if is_opened:
            opening = asyncio.create_task(asyncio.to_thread(webbrowser.open, access.link))
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await server.serve(sockets=[listening])
        finally:
            watch.cancel()


def _form(initial: Tables) -> bytes:
    return json.dumps(form(initial), allow_nan=False).encode()


async def _watch(server: uvicorn.Server, is_bounded: bool) -> None:
    """End the server when that is asked, and close connections whose request does not arrive.

    Where ``is_bounded``, those of an address that has too many are closed at once.
    """
    waiting_since: dict[Any, float] = {}
    while True:
        if interrupts.is_asked():
            server.should_exit = True
        now = time.monotonic()
        idle = {connection for connection in server.server_state.connections if not _is_answered(connection)}
        waiting_since = {connection: waiting_since.get(connection, now) for connection in idle}
        of_address = Counter(map(_peer, server.server_state.connections))
        for connection, since in waiting_since.items():
            if now - since > IDLE or (is_bounded and of_address[_peer(connection)] > OF_ADDRESS):
                of_address[_peer(connection)] -= 1
                connection.transport.close()
        await asyncio.sleep(PACE)


def _peer(connection: Any) -> str:
    """The address at the other end of a connection."""
    return (getattr(connection, "client", None) or ("",))[0]


def _is_answered(connection: Any) -> bool:
    """Whether a connection has a request that is being answered."""
    cycle = getattr(connection, "cycle", None)
    return cycle is not None and not cycle.response_complete
