"""Downloads, from a server on this machine: short, long, broken and wrong bodies leave nothing behind."""

import hashlib
import http.server
import threading

import pytest

import twolayer as tl
from twolayer.data.fetch import RemoteFile, fetch
from twolayer.data.images import SETS
from twolayer.data.samples import load_samples

CONTENT = bytes(range(256)) * 40


class _Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(404 if self.path == "/missing" else 200)
        if self.path in ("/chunks", "/few"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nhello\r\n" + (b"0\r\n\r\n" if self.path == "/few" else b"not a size\r\n"))
            self.close_connection = True
            return
        if self.path == "/packed" and "gzip" in self.headers["Accept-Encoding"]:
            self.send_header("Content-Encoding", "gzip")
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


def test_a_file_that_a_server_would_pack_arrives_as_it_is(address, tmp_path):
    fetch(_file(address, "/packed"), tmp_path)
    assert (tmp_path / "sub" / "data.bin").read_bytes() == CONTENT


def test_a_body_that_ends_early_without_a_stated_length_is_told_by_its_size(address, tmp_path):
    with pytest.raises(tl.InvalidInput, match=f"should have {len(CONTENT)} bytes, but 5 were received"):
        fetch(_file(address, "/few"), tmp_path)
    assert not [entry for entry in tmp_path.rglob("*") if entry.is_file()]


@pytest.mark.parametrize(
    "path, words", [("/wrong", "is not the published one"), ("/missing", r"could not be downloaded .* put it into")]
)
def test_a_set_is_kept_only_when_it_is_the_published_one(address, tmp_path, monkeypatch, path, words):
    published = SETS["fashion-mnist"]
    files = tuple(file._replace(address=address + path) for file in published.files)
    monkeypatch.setitem(SETS, "fashion-mnist", published._replace(files=files))
    with pytest.raises(tl.InvalidInput, match=words):
        load_samples("fashion-mnist", download=True, data_dir=tmp_path)
    assert not [entry for entry in tmp_path.rglob("*") if entry.is_file()]
