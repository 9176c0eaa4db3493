"""The store of weights, against a server of our own that behaves as badly as real ones do."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import pytest

from leanface.errors import ModelError, UsageError
from leanface.settings import Settings
from leanface.weights import store as module
from leanface.weights.manifest import FILES, LICENCES, WeightFile
from leanface.weights.store import Place, Store

DATA = b"\x80\x02" + bytes(range(256)) * 40  # begins like weights
OTHER = b"\x80\x02" + bytes(range(255, -1, -1)) * 40
HTML = b"<!DOCTYPE html><title>Sign in</title>" + b"x" * 600


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Request(BaseHTTPRequestHandler):
    """One request; the test decides how to answer."""

    server: Server

    def do_GET(self) -> None:
        self.server.log.append((self.path, self.headers.get("Range"), self.headers.get("If-Range")))
        self.server.answers[self.path](self)

    def log_message(self, *_: object) -> None:
        pass

    def start(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.log: list[tuple[str, str | None, str | None]] = []
        self.answers: dict[str, Callable[[Request], None]] = {}
        self.stop = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, *_: object) -> None:  # clients that hang up are part of the tests
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    server.server_close()


@dataclass
class Serve:
    """Answers with ``data``; ``cut`` closes the connection after that many bytes, as often as listed."""

    data: bytes = DATA
    ranges: bool = True
    etag: str = ""
    length: int | None = None
    kind: str = "application/octet-stream"
    cut: list[int] = field(default_factory=list)

    def __call__(self, request: Request) -> None:
        start, status, more = 0, 200, {}
        wanted = re.match(r"bytes=(\d+)-", request.headers.get("Range") or "")
        unchanged = request.headers.get("If-Range") in (None, self.etag)
        if self.ranges and wanted and unchanged:
            start, status = int(wanted[1]), 206
            if start >= len(self.data):
                return request.start(416)
            more = {"Content_Range": f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"}
        if self.etag:
            more["ETag"] = self.etag
        body = self.data[start:]
        request.start(status, Content_Length=self.length or len(body), Content_Type=self.kind, **more)
        request.wfile.write(body[: self.cut.pop(0)] if self.cut else body)
        return None


@pytest.fixture
def file(server: Server, monkeypatch: pytest.MonkeyPatch) -> WeightFile:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    server.answers["/a/net.pth"] = Serve()
    return WeightFile("net", "net.pth", "mit", (server.url("/a/net.pth"),), sha(DATA), len(DATA))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(Settings(tmp_path / "cache", timeout=5), places=())
    store.accept_licence(LICENCES["mit"])
    return store


def refused(store: Store, file: WeightFile, **options: object) -> str:
    """The one line that a fetch ends with; nothing may lie under the final name."""
    with pytest.raises(ModelError) as caught:
        store.fetch(file, **options)  # type: ignore[arg-type]
    assert not (store.folder / file.name).exists()
    message = str(caught.value)
    assert "\n" not in message
    assert file.name in message
    return message


# ---- downloads that work -----------------------------------------------------------------------------------


def test_fetch(store: Store, file: WeightFile, server: Server) -> None:
    steps: list[tuple[int, int | None]] = []
    got = store.fetch(file, progress=lambda done, total: steps.append((done, total)))
    assert got.path == store.folder / "net.pth"
    assert got.path.read_bytes() == DATA
    assert (got.sha256, got.verified, got.origin) == (sha(DATA), True, "cache")
    assert steps[-1] == (len(DATA), len(DATA))
    assert steps == sorted(steps)
    assert store.fetch(file) == store.find(file) == store.get(file, offline=True) == got
    assert len(server.log) == 1
    assert sorted(path.name for path in store.folder.iterdir()) == [".locks", ".stamps", "net.pth"]


def test_a_cut_connection_goes_on_where_it_stopped(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = Serve(cut=[4000, 3000])
    assert store.fetch(file).path.read_bytes() == DATA
    assert [entry[1] for entry in server.log] == [None, "bytes=4000-", "bytes=7000-"]


def test_a_later_run_goes_on(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = Serve(cut=[5000, 0, 0])
    assert "5000 bytes are kept, run it again to go on" in refused(store, file)
    assert store.fetch(file).path.read_bytes() == DATA
    assert server.log[-1][1] == "bytes=5000-"


def test_a_server_without_ranges_starts_over(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = Serve(ranges=False, cut=[4000])
    assert store.fetch(file).path.read_bytes() == DATA


@pytest.mark.parametrize(
    "left", [b"garbage" * 100, DATA[:50] + b"?" + DATA[51:90], DATA + b"more", b"x" * len(DATA)]
)
def test_what_is_left_of_another_file(store: Store, file: WeightFile, server: Server, left: bytes) -> None:
    store.folder.mkdir(parents=True)
    (store.folder / "net.pth.part").write_bytes(left)
    assert store.fetch(file).path.read_bytes() == DATA
    assert not (store.folder / "net.pth.part").exists()


def test_a_whole_partial_file_needs_no_request(store: Store, file: WeightFile, server: Server) -> None:
    store.folder.mkdir(parents=True)
    (store.folder / "net.pth.part").write_bytes(DATA)
    assert store.fetch(file).sha256 == sha(DATA)
    assert server.log == []


def test_an_unsatisfiable_range_starts_over(store: Store, file: WeightFile, server: Server) -> None:
    store.folder.mkdir(parents=True)
    (store.folder / "net.pth.part").write_bytes(DATA + b"too much")
    assert store.fetch(replace(file, size=None)).path.read_bytes() == DATA
    assert [entry[1] for entry in server.log] == [f"bytes={len(DATA) + 8}-", None]


def test_another_range_than_asked_for(store: Store, file: WeightFile, server: Server) -> None:
    def answer(request: Request) -> None:
        if request.headers.get("Range"):
            request.start(206, Content_Range=f"bytes 0-9/{len(DATA)}", Content_Length=10)
            request.wfile.write(DATA[:10])
        else:
            Serve()(request)

    store.folder.mkdir(parents=True)
    (store.folder / "net.pth.part").write_bytes(DATA[:100])
    server.answers["/a/net.pth"] = answer
    assert store.fetch(file).path.read_bytes() == DATA


def test_chunked(store: Store, file: WeightFile, server: Server) -> None:
    def answer(request: Request) -> None:
        request.protocol_version = "HTTP/1.1"
        request.start(200, Transfer_Encoding="chunked", Connection="close")
        for at in range(0, len(DATA), 4096):
            part = DATA[at : at + 4096]
            request.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        request.wfile.write(b"0\r\n\r\n")

    server.answers["/a/net.pth"] = answer
    assert store.fetch(file).path.read_bytes() == DATA


def test_redirects(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = lambda request: request.start(302, Location="/b/net.pth")
    server.answers["/b/net.pth"] = Serve()
    assert store.fetch(file).path.read_bytes() == DATA
    server.answers["/a/net.pth"] = lambda request: request.start(302, Location="ftp://127.0.0.1/net.pth")
    store.remove(file)
    assert "leads to ftp://127.0.0.1/net.pth: refused" in refused(store, file)


def test_mirrors_in_order(store: Store, file: WeightFile, server: Server) -> None:
    both = replace(file, urls=(*file.urls, server.url("/b/net.pth")))
    mirrors = (server.url("/m/"), server.url("/n/{name}?x"), server.url("/p?{url}"))
    mirrored = replace(store, settings=replace(store.settings, mirrors=mirrors))
    gone: Callable[[Request], None] = lambda request: request.start(404)  # noqa: E731
    paths = ["/m/net.pth", "/n/net.pth?x", f"/p?{both.urls[0]}", f"/p?{both.urls[1]}", "/a/net.pth"]
    server.answers |= dict.fromkeys(paths, gone)
    server.answers["/b/net.pth"] = Serve()
    assert mirrored.fetch(both).path.read_bytes() == DATA
    assert [entry[0] for entry in server.log] == [*paths, "/b/net.pth"]


# ---- downloads that fail -----------------------------------------------------------------------------------


def silent(request: Request) -> None:
    request.server.stop.wait(5)


def silent_after(count: int) -> Callable[[Request], None]:
    def answer(request: Request) -> None:
        request.start(200, Content_Length=len(DATA))
        request.wfile.write(DATA[:count])
        request.server.stop.wait(5)

    return answer


def dripping(request: Request) -> None:
    request.start(200, Content_Length=len(DATA))
    for byte in DATA:
        request.wfile.write(bytes([byte]))
        if request.server.stop.wait(0.05):
            break


def endless(request: Request) -> None:
    request.start(200)
    request.wfile.write(DATA + bytes(100_000))


def noise(request: Request) -> None:
    request.wfile.write(b"SSH-2.0-OpenSSH_9\r\n")


BAD: list[tuple[Callable[[Request], None], str]] = [
    (lambda request: request.start(404), "HTTP 404 Not Found"),
    (lambda request: request.start(503), "HTTP 503"),
    (lambda request: request.start(204), "HTTP 204"),
    (Serve(HTML, kind="text/html; charset=utf-8"), "answers with a web page instead of the file"),
    (Serve(HTML + bytes(len(DATA) - len(HTML))), "gives a web page (HTML) instead of the file"),
    (Serve(b"version https://git-lfs.github.com/spec/v1\n"), f"has 43 bytes instead of {len(DATA)}"),
    (Serve(OTHER), f"the sha256 {sha(OTHER)} instead of {sha(DATA)}"),
    (Serve(DATA[:-1]), f"has {len(DATA) - 1} bytes instead of {len(DATA)}"),
    (Serve(DATA[:-9], length=len(DATA)), f"broke off after {len(DATA) - 9} of {len(DATA)} bytes"),
    (Serve(DATA, length=len(DATA) - 9), f"has {len(DATA) - 9} bytes instead of {len(DATA)}"),
    (Serve(b"", length=len(DATA)), f"broke off after 0 of {len(DATA)} bytes"),
    (silent, "no answer within 0.3 s"),
    (silent_after(1000), "sent nothing for 0.3 s"),
    (dripping, "slower than 1000 bytes/s"),
    (noise, "BadStatusLine"),
]


@pytest.mark.parametrize(("answer", "reason"), BAD)
def test_bad_servers(
    store: Store, file: WeightFile, server: Server, answer: Callable[[Request], None], reason: str
) -> None:
    """One line that names the reason, and the next address is tried."""
    hasty = replace(store, settings=replace(store.settings, timeout=0.3))
    server.answers["/a/net.pth"] = answer
    message = refused(hasty, file)
    assert f"127.0.0.1:{server.server_address[1]}: " in message
    assert reason in message
    server.answers["/b/net.pth"] = Serve()
    both = replace(file, urls=(*file.urls, server.url("/b/net.pth")))
    assert hasty.fetch(both).path.read_bytes() == DATA


def test_nobody_listens(store: Store, file: WeightFile, server: Server) -> None:
    server.shutdown()
    server.server_close()
    assert "ConnectionRefusedError" in refused(store, file)


def test_more_than_announced_is_not_read(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = endless
    assert store.fetch(file).path.read_bytes() == DATA


def test_unknown_length_has_a_limit(
    store: Store, file: WeightFile, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 50_000)
    server.answers["/a/net.pth"] = endless
    assert "sends more than 50000 bytes" in refused(store, replace(file, size=None))


def test_a_failed_download_says_how_to_help_oneself(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = lambda request: request.start(404)
    message = refused(store, file)
    for part in (file.urls[0], str(len(DATA)), sha(DATA), str(store.folder), "--weights"):
        assert part in message


def test_offline(store: Store, file: WeightFile, server: Server) -> None:
    message = refused(store, file, offline=True)
    assert message.startswith(f"offline: net needs net.pth ({len(DATA)} bytes, sha256 {sha(DATA)})")
    assert file.urls[0] in message
    set_so = replace(store, settings=replace(store.settings, offline=True))
    assert refused(set_so, file) == message
    assert server.log == []
    assert set_so.fetch(file, offline=False).verified


def test_licence(store: Store, file: WeightFile, server: Server) -> None:
    strict = replace(file, licence="s-lab-1.0")
    terms = strict.terms
    message = refused(store, strict)
    assert terms.text in message
    assert terms.url in message
    assert "--accept-licence" in message
    assert server.log == []
    assert not store.is_accepted(terms)
    store.accept_licence(terms)
    assert Store(store.settings, ()).is_accepted(terms)
    assert not store.is_accepted(replace(terms, text="other terms"))
    assert store.fetch(strict).verified


def test_full_disk(store: Store, file: WeightFile, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 33 << 20}))
    store.folder.mkdir(parents=True)
    assert store.fetch(file).verified
    store.remove(file)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 32 << 20}))
    with pytest.raises(ModelError, match=r"has 32 MB free but 32 MB are needed: free some, or name another"):
        store.fetch(file)
    assert len(server.log) == 1


def test_a_cache_that_cannot_be_written(tmp_path: Path, file: WeightFile) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    blocked = Store(Settings(tmp_path / "cache"), (Place(tmp_path / "theirs"),))
    with pytest.raises(
        ModelError, match=r"cannot write to .*cache: .*; name another folder with LEANFACE_CACHE"
    ):
        blocked.accept_licence(LICENCES["mit"])
    assert blocked.find(file) is None
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "net.pth").write_bytes(DATA)
    found = blocked.find(file)
    assert found is not None
    assert found.verified


# ---- files without a published sum -------------------------------------------------------------------------


@pytest.fixture
def unsummed(file: WeightFile) -> WeightFile:
    return replace(file, sha256=None, size=None)


def test_the_first_sum_is_recorded(store: Store, unsummed: WeightFile, server: Server) -> None:
    assert store.fetch(unsummed).verified
    store.remove(unsummed)
    server.answers["/a/net.pth"] = Serve(OTHER)
    message = refused(store, unsummed)
    assert f"the sha256 {sha(OTHER)} instead of {sha(DATA)}" in message
    assert "the expected sum is that of the first download here, --sha256 takes another one" in message
    assert store.fetch(unsummed, sha256=sha(OTHER).upper()).path.read_bytes() == OTHER
    assert store.find(unsummed, sha256=sha(OTHER)) is not None
    with pytest.raises(ModelError, match=r"its sha256 is"):
        store.find(unsummed, sha256=sha(DATA))


def test_a_pinned_sum(store: Store, unsummed: WeightFile, file: WeightFile) -> None:
    assert "instead of" in refused(store, unsummed, sha256="0" * 64)
    with pytest.raises(UsageError, match=r"is not a sha256"):
        store.fetch(unsummed, sha256="123")
    with pytest.raises(UsageError, match=r"the published sha256 of net is"):
        store.fetch(file, sha256="0" * 64)


def test_resume_only_of_the_same_file(store: Store, unsummed: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = Serve(OTHER, etag='"1"', cut=[5000, 0, 0])
    refused(store, unsummed)
    server.answers["/a/net.pth"] = Serve(DATA, etag='"2"', cut=[6000])
    assert store.fetch(unsummed).path.read_bytes() == DATA
    asked = [entry[1:] for entry in server.log]
    assert asked[0] == (None, None)
    assert asked[1:] == [("bytes=5000-", '"1"')] * 3 + [("bytes=6000-", '"2"')]
    assert not (store.folder / "net.pth.part.from").exists()


def test_without_a_mark_it_starts_over(store: Store, unsummed: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = Serve(cut=[5000])
    assert store.fetch(unsummed).path.read_bytes() == DATA
    assert [entry[1] for entry in server.log] == [None, None]


def test_without_sum_size_and_length(store: Store, unsummed: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = endless
    assert "does not say how long the file is" in refused(store, unsummed)
    server.answers["/a/net.pth"] = Serve(HTML)
    assert "gives a web page (HTML) instead of the file" in refused(store, unsummed)
    server.answers["/a/net.pth"] = Serve(HTML[:40])
    assert "gives a web page (HTML) instead of the file" in refused(store, unsummed)


# ---- several processes -------------------------------------------------------------------------------------

FETCH = """
import sys, pathlib
from leanface.settings import Settings
from leanface.weights.manifest import WeightFile
from leanface.weights.store import Store
cache, url, sha256, size = sys.argv[1:]
file = WeightFile("net", "net.pth", "mit", (url,), sha256, int(size))
print(Store(Settings(pathlib.Path(cache), timeout=10), ()).fetch(file).sha256)
"""


def spawn(store: Store, file: WeightFile) -> subprocess.Popen[str]:
    args = [str(store.settings.cache), file.urls[0], file.sha256 or "", str(file.size)]
    return subprocess.Popen([sys.executable, "-c", FETCH, *args], stdout=subprocess.PIPE, text=True)


def test_two_processes_download_once(store: Store, file: WeightFile, server: Server) -> None:
    both_here = threading.Event()

    def answer(request: Request) -> None:
        both_here.wait(10)
        Serve()(request)

    server.answers["/a/net.pth"] = answer
    first, second = spawn(store, file), spawn(store, file)
    while not server.log:
        time.sleep(0.01)
    time.sleep(0.5)  # the other one waits for the lock by now
    both_here.set()
    assert [process.communicate(timeout=20)[0].strip() for process in (first, second)] == [sha(DATA)] * 2
    assert len(server.log) == 1


def test_a_killed_process_leaves_no_lock(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = silent_after(9000)
    process = spawn(store, file)
    part = store.folder / "net.pth.part"
    while not (part.exists() and part.stat().st_size):
        time.sleep(0.01)
    (store.folder / ".net.pth.0123.tmp").write_bytes(b"left by a killed import")
    process.kill()
    process.communicate()
    server.answers["/a/net.pth"] = Serve()
    assert store.fetch(file).path.read_bytes() == DATA
    assert not list(store.folder.glob("*.tmp"))


def test_a_lock_that_is_never_given_back(store: Store, file: WeightFile) -> None:
    hasty = replace(store, settings=replace(store.settings, timeout=0.03))
    with store._locked(file, None), pytest.raises(ModelError, match=r"another process holds .*net.pth.lock"):
        hasty.fetch(file)


def test_a_file_system_without_locks(store: Store, file: WeightFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_try_lock", lambda _: None)
    assert store.fetch(file).path.read_bytes() == DATA
    assert sorted(path.name for path in store.folder.iterdir()) == [".locks", ".stamps", "net.pth"]


# ---- looking -----------------------------------------------------------------------------------------------


def put(path: Path, data: bytes = DATA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_stamps_spare_hashing(store: Store, file: WeightFile, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(store.folder / "net.pth")
    hashed = []
    original = module._hash

    def counted(stream: BinaryIO) -> hashlib._Hash:
        hashed.append(stream.name)
        return original(stream)

    monkeypatch.setattr(module, "_hash", counted)
    assert store.find(file) == store.find(file) == Store(store.settings, ()).find(file)
    assert len(hashed) == 1
    os.utime(path, ns=(1, 1))
    store.find(file)
    assert len(hashed) == 2
    store.verify(file)
    assert len(hashed) == 3
    next((store.folder / ".stamps").iterdir()).write_text("[broken")
    assert store.find(file) is not None
    assert len(hashed) == 4


def test_verify_sees_what_a_stamp_hides(store: Store, file: WeightFile) -> None:
    path = put(store.folder / "net.pth")
    store.find(file)
    state = path.stat()
    path.write_bytes(OTHER)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert store.find(file) is not None
    with pytest.raises(
        ModelError, match=rf"its sha256 is {sha(OTHER)}, expected {sha(DATA)}; delete it with"
    ):
        store.verify(file)
    path.unlink()
    with pytest.raises(ModelError, match=r"net needs net.pth"):
        store.verify(file)


@pytest.mark.parametrize("damage", [DATA[:5000], OTHER, HTML, b""])
def test_our_own_damaged_copy_is_named_and_kept(
    store: Store, file: WeightFile, server: Server, damage: bytes
) -> None:
    path = put(store.folder / "net.pth", damage)
    for action in (store.find, store.fetch, store.verify):
        with pytest.raises(
            ModelError, match=rf"{re.escape(str(path))} .*leanface models remove net"
        ) as caught:
            action(file)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == damage
    assert server.log == []
    store.remove(file)
    assert store.fetch(file).verified


def test_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    gpen, onnx, hires = FILES["gpen-512"], FILES["gpen-512-onnx"], FILES["gpen-1024"]
    spots = {
        here / "GPEN/weights": gpen,
        home / "ComfyUI/models/facerestore_models": gpen,
        here / ".assets/models": onnx,
        home / ".cache/huggingface/hub/models--akhaliq--GPEN-BFR-512/snapshots/0123": gpen,
        home / f".cache/modelscope/hub/models/iic/{hires.folder}": hires,
        home / ".cache/modelscope/hub/iic/another-model": None,
    }
    for folder in spots:
        monkeypatch.setattr(module, "FILES", FILES)
        for real in (gpen, onnx, hires):
            copy = put(folder / real.name)
            wanted = replace(real, sha256=real.sha256 and sha(DATA), size=real.size and len(DATA))
            found = Store(Settings(tmp_path / "cache")).find(wanted)
            right = spots[folder] is hires or real is not hires
            assert (found.path if found else None) == (copy if right else None)
            assert copy.read_bytes() == DATA
            copy.unlink()


def test_exact_name_or_size_and_sum(store: Store, file: WeightFile, tmp_path: Path) -> None:
    theirs = replace(store, places=(Place(tmp_path / "theirs"),))
    put(tmp_path / "theirs" / "net.pth", OTHER)
    put(tmp_path / "theirs" / "helper.pth", OTHER)
    put(tmp_path / "theirs" / "net.txt")
    assert theirs.find(file) is None
    renamed = put(tmp_path / "theirs" / "Net-512.pth")
    before = renamed.stat()
    found = theirs.find(file)
    assert found is not None
    assert (found.path, found.origin, found.verified) == (renamed, "found", True)
    assert renamed.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(
        ModelError, match=rf"net is not in our cache .*; the one at {re.escape(str(renamed))} is not"
    ):
        theirs.remove(file)
    assert renamed.exists()
    # Without a sum only the name counts.
    named = theirs.find(replace(file, sha256=None, size=None))
    assert named is not None
    assert (named.path.name, named.sha256, named.verified) == ("net.pth", sha(OTHER), False)


def test_links_as_in_the_hugging_face_cache(store: Store, file: WeightFile, tmp_path: Path) -> None:
    blob = put(tmp_path / "hub/models--a--b/blobs" / sha(DATA))
    link = tmp_path / "hub/models--a--b/snapshots/0/net.pth"
    link.parent.mkdir(parents=True)
    try:
        link.symlink_to(blob)
    except OSError:
        pytest.skip("no links here")
    found = replace(store, places=(Place(tmp_path / "hub", 5),)).find(file)
    assert found is not None
    assert found.path == link


def test_weights_given_as_a_file(store: Store, file: WeightFile, tmp_path: Path) -> None:
    put(store.folder / "net.pth")
    mine = put(tmp_path / "mine.pth")
    found = store.find(file, weights=mine)
    assert found is not None
    assert (found.path, found.origin, found.verified) == (mine, "given", True)
    put(mine, OTHER)
    with pytest.raises(
        ModelError, match=r"is not net.pth .*; get it again, or use it as it is with --allow-unv"
    ):
        store.find(file, weights=mine)
    found = store.find(file, weights=mine, allow_unverified=True)
    assert found is not None
    assert (found.path, found.sha256, found.verified) == (mine, sha(OTHER), False)
    put(mine, DATA[:99])
    with pytest.raises(
        ModelError, match=rf"mine.pth has 99 bytes, net.pth .net. has {len(DATA)}; get it again"
    ):
        store.find(file, weights=mine)
    put(mine, HTML)
    with pytest.raises(ModelError, match=r"mine.pth is a web page \(HTML\); expected net.pth"):
        store.find(file, weights=mine, allow_unverified=True)
    with pytest.raises(ModelError, match=r"nowhere is not there; name an existing folder"):
        store.find(file, weights=tmp_path / "nowhere")


def test_weights_given_as_a_folder(store: Store, file: WeightFile, tmp_path: Path) -> None:
    own = put(store.folder / "net.pth")
    folder = tmp_path / "mine"
    put(folder / "helper.pth", OTHER)
    found = store.find(file, weights=folder)
    assert found is not None
    assert found.path == own
    inside = put(folder / "below" / "net.pth")
    set_so = replace(store, settings=replace(store.settings, weights=folder))
    for found in (store.find(file, weights=folder), set_so.find(file)):
        assert found is not None
        assert found.path == inside
    put(inside, OTHER)
    with pytest.raises(ModelError, match=r"is not net.pth"):
        store.find(file, weights=folder)
    wrong = replace(store, settings=replace(store.settings, weights=own))
    with pytest.raises(ModelError, match=r"LEANFACE_WEIGHTS .* is not there; name an existing folder"):
        wrong.find(file)


# ---- import, remove, listing -------------------------------------------------------------------------------


def test_import(store: Store, file: WeightFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES", {"net": file})
    source = put(tmp_path / "download (1).bin")
    steps: list[tuple[int, int | None]] = []
    got = store.import_file(source, progress=lambda done, total: steps.append((done, total)))
    assert (got.file, got.path, got.verified) == (file, store.folder / "net.pth", True)
    assert got.path.read_bytes() == source.read_bytes() == DATA
    assert steps[-1] == (len(DATA), len(DATA))
    assert store.find(file) == got
    assert store.import_file(got.path) == got
    assert not list(store.folder.glob(".*.tmp"))
    assert store.remove(file) == len(DATA)
    assert store.find(file) is None
    with pytest.raises(ModelError, match=r"net is not in our cache"):
        store.remove(file)


def test_import_of_something_else(
    store: Store, file: WeightFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES", {"net": file})
    source = put(tmp_path / "net.pth", OTHER)
    with pytest.raises(ModelError, match=rf"{sha(OTHER)}. is none of the published files; say which"):
        store.import_file(source)
    with pytest.raises(ModelError, match=r"is not net.pth"):
        store.import_file(source, file)
    with pytest.raises(ModelError, match=r"there is no file"):
        store.import_file(tmp_path, file)
    put(source, HTML)
    with pytest.raises(ModelError, match=r"a web page"):
        store.import_file(source, file, allow_unverified=True)
    assert not (store.folder / "net.pth").exists()


def test_import_of_the_users_own_variant(store: Store, file: WeightFile, tmp_path: Path) -> None:
    source = put(tmp_path / "trained.pth", OTHER + b"longer")
    got = store.import_file(source, file, allow_unverified=True)
    assert (got.verified, got.sha256) == (False, sha(OTHER + b"longer"))
    assert store.find(file) == store.fetch(file) == store.verify(file) == got
    # It counts in our cache only, and until it is removed or replaced by the published file.
    assert replace(store, settings=Settings(tmp_path / "else"), places=(Place(tmp_path),)).find(file) is None
    published = store.import_file(put(tmp_path / "published.pth"), file)
    assert published.verified
    put(store.folder / "net.pth", OTHER + b"longer")
    with pytest.raises(ModelError, match=r"has 10248 bytes|is not net.pth"):
        store.find(file)


def test_import_without_a_published_sum(
    store: Store, unsummed: WeightFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES", {"net": unsummed})
    got = store.import_file(put(tmp_path / "net.pth"))
    assert got.verified
    assert store.find(unsummed) == got
    with pytest.raises(ModelError, match=rf"expected {sha(DATA)}"):
        store.import_file(put(tmp_path / "net.pth", OTHER), unsummed)
    assert store.import_file(tmp_path / "net.pth", unsummed, allow_unverified=True).sha256 == sha(OTHER)
    assert store.find(unsummed) is not None


def test_listing_and_missing(
    store: Store, file: WeightFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(file, id="broken", name="broken.pth", licence="gpen")
    absent = replace(file, id="absent", name="absent.onnx", size=9)
    monkeypatch.setattr(module, "FILES", {item.id: item for item in (file, broken, absent)})
    put(store.folder / "net.pth")
    put(store.folder / "broken.pth", OTHER)
    first, second, third = store.listing()
    assert (first.located and first.located.path, first.problem, first.accepted) == (
        store.folder / "net.pth",
        None,
        True,
    )
    assert second.located is None
    assert "broken.pth is not broken.pth (broken): its sha256 is" in (second.problem or "")
    assert not second.accepted
    assert (third.located, third.problem) == (None, None)
    assert store.missing([file, absent]) == [absent]


def test_remove_takes_the_remains_of_a_download(store: Store, file: WeightFile, server: Server) -> None:
    server.answers["/a/net.pth"] = Serve(cut=[5000, 0, 0])
    refused(store, file)
    assert store.remove(file) == 5000
    assert not (store.folder / "net.pth.part").exists()
