"""The server of the explorer: a page, its form, and answers that stream.

Everything is one conversation. The page holds a specification, the tables of a file for `twolayer run`, and asks about
it; the server passes the question to a worker process and the worker's events back.

=========================  ======================================================================================
``GET /``                  the page; its script, styles and fonts below ``/static/``
``GET /api/form``          the controls with their fields, the presets, the specification to begin with (`form`)
``POST /api/work``         ``{kind, client, spec, options}``: a stream of events (`text/event-stream`)
``POST /api/download``     ``{format, client, spec, options}``: a file
=========================  ======================================================================================

Events: ``queued {position}``, ``compiling {what, usual_seconds}``, ``progress {fraction, words}``, ``partial
{curves}``, and in the end one of ``result {...}``, ``refused {message, field, position}``, ``failed {message}`` and
``cancelled {}``. A request that is refused before anything else was said gets the status 422 instead of a stream. A new
request of the same window and kind cancels the one before; so does closing the connection.

Every rejection has a status from 400 on, and one sentence: ``{message, field, position}``. Requests under ``/api/``
need the header ``X-Twolayer-Token`` (`access`). No request writes a file, or reads one outside of the package.
"""

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from twolayer.core.errors import InvalidInput
from twolayer.explore.access import HEADERS, Access
from twolayer.explore.messages import (
    ALIASES,
    FORMATS,
    KINDS,
    MAX_BYTES,
    Tables,
    a_name,
    a_table,
    one_of,
    read_body,
)
from twolayer.explore.pool import ENDS, Busy, Event, PageJob, Pool

STATIC = Path(__file__).parent / "static"
ENGINE = Path(__file__).parents[1] / "live" / "engine.js"  # the engine of live figures
# Seconds: for the body of a request, for a client to take a part of the answer, and between signs of life in a stream.
BODY, SENDING, ALIVE = 10.0, 20.0, 10.0
OF_ADDRESS = 400  # requests of one address that are being answered, and its connections
FILES = {
    "toml": ("application/toml", "toml"),
    "script": ("text/x-python", "py"),
    "png": ("image/png", "png"),
    "svg": ("image/svg+xml", "svg"),
    "pdf": ("application/pdf", "pdf"),
    "netcdf": ("application/x-netcdf", "nc"),
}

ALIVE_STILL = Event("", "")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Rejection(Exception):
    """A request that is rejected: its status, and one sentence."""

    def __init__(self, status: int, message: str, **more: object):
        super().__init__(message)
        self.status, self.body = status, {"message": message} | more


def make_app(
    pool: Pool, access: Access, make_form: Callable[[], bytes], is_full: Callable[[], bool] = lambda: False
) -> "Guard":
    """Put the routes together, behind the guard that every request passes; ``is_full`` says when it refuses all.

    The form is made when it is asked for first: it imports most of the package, for which the page need not wait.
    """
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/api/form", _form),
            Route("/api/work", _work, methods=["POST"]),
            Route("/api/download", _download, methods=["POST"]),
            Route("/static/engine.js", _engine),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={Rejection: _refused, HTTPException: _http_error, InvalidInput: _invalid, Busy: _busy},
    )
    app.state.pool, app.state.access = pool, access
    app.state.make_form, app.state.form = make_form, None
    return Guard(app, access, is_full)


class Guard:
    """Refuses what is not ours, adds the headers to every answer, and drops clients that take nothing."""

    def __init__(self, app: Starlette, access: Access, is_full: Callable[[], bool]):
        self.app, self.access, self.is_full = app, access, is_full
        self.answering: Counter[str] = Counter()  # requests that are being answered, by the address of the visitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message.get("headers", ())}
                more = [header for header in HEADERS if header[0] not in known]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            async with asyncio.timeout(SENDING):
                await send(message)

        headers = {name.lower(): value for name, value in scope["headers"]}
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        refusal = self.access.refusal(headers, scope["path"], token)
        address = visitor_of(scope, self.access)
        self.answering[address] += 1
        leave = {"connection": "close", "retry-after": "5"}
        try:
            if self.is_full():
                message = "The explorer is busy, since too many connections are open: try again in a moment."
                await JSONResponse({"message": message}, 503, leave)(scope, receive, guarded)
            elif self.answering[address] > OF_ADDRESS:
                message = f"The explorer answers {OF_ADDRESS} requests of one address at once: try again in a moment."
                await JSONResponse({"message": message}, 429, leave)(scope, receive, guarded)
            elif refusal:
                await JSONResponse({"message": refusal}, 403)(scope, receive, guarded)
            else:
                await self.app(scope, receive, guarded)
        except (TimeoutError, ClientDisconnect, ConnectionError):  # nobody is there, or takes what is sent
            return
        finally:
            self.answering[address] -= 1
            self.answering += Counter()  # forgets those who have left


def visitor_of(scope: Scope, access: Access) -> str:
    """The address of the visitor who sent a request."""
    stated = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"]
    return access.visitor((scope["client"] or ("",))[0], ",".join(stated))


# ------------------------------------------------------------------------------------------------ refusals


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Rejection)
    return JSONResponse(error.body, error.status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {404: "There is nothing at this address.", 405: "This address does not take such requests."}
    message = sentences.get(error.status_code, f"The request cannot be answered: {error.detail}.")
    return JSONResponse({"message": message}, error.status_code, headers=error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    return JSONResponse({"message": str(error)}, 400)


async def _busy(request: Request, error: Exception) -> Response:
    return JSONResponse({"message": str(error)}, 503, headers={"retry-after": "5"})


# -------------------------------------------------------------------------------------------------- routes


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")


async def _engine(request: Request) -> Response:
    return FileResponse(ENGINE, media_type="text/javascript")


async def _form(request: Request) -> Response:
    state = request.app.state
    if state.form is None:
        state.form = asyncio.create_task(asyncio.to_thread(state.make_form))
    return Response(await asyncio.shield(state.form), media_type="application/json")


async def _work(request: Request) -> Response:
    body = await _body(request)
    kind = one_of("kind", ALIASES.get(str(body.get("kind")), body.get("kind")), KINDS)
    job = _submit(request, body, kind, a_table("options", body.get("options")))
    events = _events(job)
    first = await anext(events)
    if first.name == "refused":
        raise Rejection(422, **json.loads(first.data))
    return EventStream(request.app.state.pool, job, events, first)


async def _download(request: Request) -> Response:
    body = await _body(request)
    form = one_of("format", body.get("format"), FORMATS)
    options = a_table("options", body.get("options")) | {"format": form}
    job = _submit(request, body, "download", options)
    waiting = asyncio.ensure_future(_end(job))
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        request.app.state.pool.cancel(job)
    if not waiting.done():
        waiting.cancel()
        raise ClientDisconnect
    end = waiting.result()
    data = json.loads(end.data)
    if end.name == "cancelled":
        raise Rejection(409, "The download was cancelled, since another one was asked for.")
    if end.name != "result":
        raise Rejection(422, **data)
    media, suffix = FILES[form]
    disposition = f'attachment; filename="{data["name"]}.{suffix}"'
    content = base64.b64decode(data["content"])
    return Response(content, media_type=media, headers={"content-disposition": disposition})


async def _body(request: Request) -> Tables:
    """The body of a request, within the limits of size and time."""
    declared = request.headers.get("content-length", "0")
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise Rejection(415, "The body of a request must be JSON, and say so in its content type.")
    sentence = f"The body of a request may have {MAX_BYTES // 1024} kB at most."
    if not declared.isdecimal() or int(declared[:20]) > MAX_BYTES:
        raise Rejection(413, sentence)
    content = bytearray()
    try:
        async with asyncio.timeout(BODY):
            async for part in request.stream():
                content += part
                if len(content) > MAX_BYTES:
                    raise Rejection(413, sentence)
    except TimeoutError:
        raise Rejection(408, f"The body of a request must arrive within {BODY:.0f} seconds.") from None
    return read_body(bytes(content))


def _submit(request: Request, body: Tables, kind: str, options: Tables) -> PageJob:
    client = (visitor_of(request.scope, request.app.state.access), a_name("client", body.get("client")))
    slot = a_name("options.slot", options.pop("slot", ""))
    job = PageJob(kind, a_table("spec", body.get("spec")), options, client, slot)
    request.app.state.pool.submit(job)
    return job


# -------------------------------------------------------------------------------------------------- events


async def _events(job: PageJob) -> AsyncIterator[Event]:
    """The events of a job until its end; one without a name is a sign of life."""
    while True:
        try:
            async with asyncio.timeout(ALIVE):
                event = await job.next_event()
        except TimeoutError:
            event = ALIVE_STILL
        yield event
        if event.name in ENDS:
            return


async def _end(job: PageJob) -> Event:
    async for event in _events(job):
        if event.name in ENDS:
            return event
    raise AssertionError("A job without an end.")


async def _gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events of one job; it is cancelled when the connection is closed."""

    media_type = "text/event-stream"

    def __init__(self, pool: Pool, job: PageJob, events: AsyncIterator[Event], first: Event):
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.pool, self.job, self.events, self.first = pool, job, events, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self.pool.cancel(self.job)
            for task in (sending, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send_all(self, send: Send) -> None:
        await send(_part(self.first))
        if self.first.name not in ENDS:
            async for event in self.events:
                await send(_part(event))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _part(event: Event) -> Message:
    text = f"event: {event.name}\ndata: {event.data}\n\n" if event.name else ": alive\n\n"
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
