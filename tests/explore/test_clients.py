"""Clients that are slow, leave or ask again, at a server with workers that compute nothing."""

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from twolayer.core import interrupts
from twolayer.explore import serve, server
from twolayer.explore.access import Access
from twolayer.explore.pool import Pool

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))
TOKEN = "0123456789abcdef"
# Seconds: what never comes to an end by itself, and what a busy machine may take for a moment's work.
FOR_EVER, PATIENCE = 3600.0, 60.0


@contextmanager
def running(monkeypatch, **fields):
    """A server in this process, with the limits of slow clients at half a second."""
    monkeypatch.setattr(serve, "IDLE", 0.5)
    monkeypatch.setattr(serve, "PACE", 0.05)
    monkeypatch.setattr(server, "BODY", 0.5)
    listening = socket.create_server(("127.0.0.1", 0))
    access = Access("127.0.0.1", listening.getsockname()[1], TOKEN, **fields)
    pool = Pool(1, command=FAKE)
    thread = threading.Thread(target=lambda: asyncio.run(serve.serve_with(pool, listening, access, {})))
    thread.start()
    with socket.create_connection(listening.getsockname()) as first:  # answered as soon as everything is imported
        first.settimeout(PATIENCE)
        first.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 403 " in first.recv(100)
    yield listening.getsockname()
    interrupts.ask()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    interrupts._asked.clear()
    listening.close()


@pytest.fixture
def address(monkeypatch):
    with running(monkeypatch) as listening:
        yield listening


def request(address, body, *, declared=None, **headers):
    """A request as bytes."""
    length = len(body) if declared is None else declared
    named = {"Host": f"127.0.0.1:{address[1]}", "X-Twolayer-Token": TOKEN, "Content-Type": "application/json"}
    lines = [f"{name}: {value}" for name, value in (named | headers | {"Content-Length": length}).items()]
    return ("POST /api/work HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode() + body


def question(**options):
    return json.dumps({"kind": "theory", "client": "a", "spec": {}, "options": options}).encode()


def until_closed(connection):
    """All that a server sends until it closes the connection; one that stays open ends the test."""
    content = b""
    connection.settimeout(PATIENCE)
    while part := connection.recv(65536):
        content += part
    return content


def test_a_request_that_does_not_arrive_is_dropped(address):
    with socket.create_connection(address) as silent, socket.create_connection(address) as half:
        half.sendall(b"POST /api/work HTTP/1.1\r\nHost: 127.0")
        for connection in (silent, half):
            assert until_closed(connection) == b""


def test_a_body_that_does_not_arrive_is_refused(address):
    with socket.create_connection(address) as slow:
        slow.sendall(request(address, b'{"kind": ', declared=1000))
        content = until_closed(slow)
        assert b" 408 " in content.splitlines()[0]
        assert b"must arrive within" in content


def test_a_body_without_end_is_refused(address):
    with socket.create_connection(address) as endless:
        head = request(address, b"", **{"Transfer-Encoding": "chunked"}).replace(b"Content-Length: 0\r\n", b"")
        chunk = b"x" * 60_000
        endless.sendall(head)
        try:
            for _ in range(10):
                endless.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        except OSError:  # closed already
            pass
        endless.settimeout(PATIENCE)
        assert b" 413 " in endless.recv(65536).splitlines()[0]


def test_the_page_is_there_before_its_form(monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(serve, "form", lambda initial: {"is_made": gate.wait(PATIENCE)})
    with running(monkeypatch) as address:
        head = f"Host: 127.0.0.1:{address[1]}\r\nX-Twolayer-Token: {TOKEN}\r\nConnection: close\r\n\r\n"
        with socket.create_connection(address) as form, socket.create_connection(address) as page:
            form.sendall(f"GET /api/form HTTP/1.1\r\n{head}".encode())
            page.sendall(f"GET /?token={TOKEN} HTTP/1.1\r\n{head}".encode())
            assert b"<title>" in until_closed(page)
            gate.set()
            assert until_closed(form).endswith(b'{"is_made": true}')


def test_a_server_begins_without_the_rest_of_the_package(fresh_python):
    program = "import sys; from twolayer.explore import form, serve; form.initial_spec(); print('jax' in sys.modules)"
    assert fresh_python(program) == "False\n"


def test_a_client_that_leaves_frees_its_worker(address):
    with socket.create_connection(address) as leaving:
        leaving.sendall(request(address, question(seconds=FOR_EVER, begins=True)))
        assert b" 200 " in leaving.recv(100)  # the one worker is at work
    with socket.create_connection(address) as other:
        other.sendall(request(address, question(name="x"), Connection="close"))
        assert b"event: result" in until_closed(other)


def test_a_new_question_of_the_window_cancels_the_one_before(address):
    with socket.create_connection(address) as first, socket.create_connection(address) as second:
        first.sendall(request(address, question(seconds=FOR_EVER, begins=True), Connection="close"))
        start = first.recv(10)  # it is there before the other one
        second.sendall(request(address, question(name="y"), Connection="close"))
        assert b"event: cancelled" in start + until_closed(first)
        assert b"event: result" in until_closed(second)


def test_the_page_of_a_proxy_is_answered(monkeypatch):
    origin = "https://explorer.example"
    with running(monkeypatch, origin=origin) as address, socket.create_connection(address) as visitor:
        named = {"Host": "explorer.example", "Origin": origin, "X-Forwarded-For": "192.0.2.7", "Connection": "close"}
        visitor.sendall(request(address, question(name="z"), **named))
        assert b"event: result" in until_closed(visitor)


def test_beyond_the_last_connection_one_sentence_says_so(address, monkeypatch):
    monkeypatch.setattr(serve, "CONNECTIONS", 2)
    monkeypatch.setattr(serve, "IDLE", 60.0)
    with socket.create_connection(address), socket.create_connection(address):
        with socket.create_connection(address) as third:
            third.sendall(request(address, question(name="z")))
            content = until_closed(third)
    head, _, body = content.partition(b"\r\n\r\n")
    assert b" 503 " in head.splitlines()[0] and b"application/json" in head
    assert "too many connections" in json.loads(body)["message"]


def test_an_address_with_too_many_requests_is_told_and_others_are_answered(monkeypatch):
    monkeypatch.setattr(server, "OF_ADDRESS", 2)
    origin = "https://explorer.example"

    def named(visitor):
        return {"Host": "explorer.example", "Origin": origin, "X-Forwarded-For": visitor, "Connection": "close"}

    with running(monkeypatch, origin=origin) as address, contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(address)) for _ in range(2)]
        for number, connection in enumerate(held):
            body = question(seconds=60.0 * (number == 0), slot=str(number), begins=True)
            connection.sendall(request(address, body, **named("192.0.2.7")))
            connection.settimeout(30)
            assert b" 200 " in connection.recv(65536)  # the first computes, the second is told that it is in line
        third = stack.enter_context(socket.create_connection(address))
        third.sendall(request(address, question(slot="3"), **named("192.0.2.7")))
        head, _, body = until_closed(third).partition(b"\r\n\r\n")
        assert b" 429 " in head.splitlines()[0] and b"retry-after" in head
        assert "of one address at once" in json.loads(body)["message"]
        held[0].close()  # which frees the worker, and a place
        other = stack.enter_context(socket.create_connection(address))
        other.sendall(request(address, question(name="z"), **named("192.0.2.8")))
        assert b"event: result" in until_closed(other)
        held[1].settimeout(PATIENCE)
        until_closed(held[1])
        again = stack.enter_context(socket.create_connection(address))
        again.sendall(request(address, question(name="y"), **named("192.0.2.7")))
        assert b"event: result" in until_closed(again)


def test_idle_connections_of_one_address_are_bounded(address, monkeypatch):
    monkeypatch.setattr(serve, "OF_ADDRESS", 3)
    monkeypatch.setattr(serve, "IDLE", 60.0)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(address)) for _ in range(8)]
        ends = time.monotonic() + PATIENCE
        while len(open_ones := [each for each in held if is_open(each)]) > 3 and time.monotonic() < ends:
            time.sleep(0.05)
        assert len(open_ones) == 3


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
