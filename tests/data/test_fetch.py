"""Downloads, from a server on this machine: short, long, broken and wrong bodies leave nothing behind."""

import hashlib
import http.server
import threading

import pytest

import twolayer as tl
from twolayer.data.fetch import RemoteFile, fetch

CONTENT = bytes(range(256)) * 40


class _Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(404 if self.path == "/missing" else 200)
        if self.path == "/chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nhello\r\nnot a size\r\n")
            self.close_connection = True
            return
        length = 10**12 if self.path == "/endless" else len(CONTENT)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        body = {"/short": CONTENT[:100], "/wrong": CONTENT[::-1], "/endless": CONTENT * 3}.get(self.path, CONTENT)
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _file(address, path):
    return RemoteFile("sub/data.bin", address + path, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_a_published_file_is_kept_and_not_fetched_again(address, tmp_path):
    fetch(_file(address, "/good"), tmp_path)
    assert (tmp_path / "sub" / "data.bin").read_bytes() == CONTENT
    fetch(_file(address, "/missing"), tmp_path)  # it is there


@pytest.mark.parametrize(
    "path, words",
    [
        ("/short", r"100 were received|could not be downloaded"),
        ("/wrong", "SHA-256"),
        ("/endless", "more were received"),
        ("/chunks", "could not be downloaded"),
        ("/missing", "could not be downloaded .*404"),
    ],
)
def test_what_is_not_the_published_file_leaves_nothing(address, tmp_path, path, words):
    with pytest.raises(tl.InvalidInput, match=words) as told:
        fetch(_file(address, path), tmp_path)
    assert "\n" not in str(told.value) and len(str(told.value)) < 500
    assert not [entry for entry in tmp_path.rglob("*") if entry.is_file()]


def test_a_folder_that_cannot_be_written_is_told(address, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tl.InvalidInput, match=r"could not be written to .*file"):
        fetch(_file(address, "/good"), tmp_path / "file")
    with pytest.raises(tl.InvalidInput, match="could not be downloaded"):
        fetch(_file("http://127.0.0.1:1", "/good"), tmp_path)
