"""Finds, fetches and keeps files of weights; standard library only.

In the cache folder ``weights/NAME`` are the files. Beside them ``.stamps`` remembers the sums of files that
have not changed since (size and time of change), so that a start does not read 300 MB; ``.pins`` the sums
recorded at a first download or import; ``.locks`` has one lock per file; ``NAME.part`` is a download that can
go on. ``licences/ID.txt`` are the terms that were accepted. A file gets its final name only after its sum
matched. Files outside the cache belong to the user: they are read, never changed.

The modules that speak HTTP are imported where a download begins, so that a start does not pay for them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from urllib.parse import urlsplit

from leanface.errors import ModelError, UsageError
from leanface.settings import Settings
from leanface.weights.manifest import FILES, Licence, WeightFile, describe, weight_format

if TYPE_CHECKING:
    import http.client
    import urllib.request

Progress = Callable[[int, int | None], None]
"""Called with the bytes done and the bytes in all (None: not known)."""

Origin = Literal["given", "cache", "found"]

_CHUNK = 1 << 20
_MIN_RATE = 1000  # bytes per second below which a server counts as dead
_MAX_BYTES = 1 << 32  # of a download whose size nobody knows
_TRIES = 3  # broken connections in a row, each without _STEP bytes of progress, before an address is given up
_STEP = 1 << 20
_PAUSE = 0.5  # seconds before a broken connection is tried again, times the number of failures
_MARGIN = 32 << 20  # bytes to leave free on the disk
_MAX_ENTRIES = 20_000  # looked at per place
_HEAD = 512  # bytes that tell what a file is


@dataclass(frozen=True)
class Located:
    """A file of weights that is here.

    Attributes:
        file: what it was looked up as.
        path: where it lies.
        sha256: its sum, as hexadecimal text.
        verified: whether that is the published sum, or the one recorded at the first download.
        origin: ``given`` by the user for this run, in our ``cache``, or ``found`` in a usual place.
    """

    file: WeightFile
    path: Path
    sha256: str
    verified: bool
    origin: Origin


@dataclass(frozen=True)
class Entry:
    """One line of a listing.

    Attributes:
        file: what it is about.
        located: where it is, or None.
        problem: what is wrong with our own copy, or None.
        accepted: whether its terms were accepted on this machine.
    """

    file: WeightFile
    located: Located | None
    problem: str | None
    accepted: bool


@dataclass(frozen=True)
class Place:
    """A folder that other programs keep weights in, and how many levels below it to look."""

    folder: Path
    depth: int = 0


_NEAR = (  # below the current folder and the home folder
    "weights",
    "GPEN/weights",
    "models/facerestore_models",
    "ComfyUI/models/facerestore_models",
    ".assets/models",
    "facefusion/.assets/models",
    "gfpgan/weights",
    "GFPGAN/gfpgan/weights",
    "experiments/pretrained_models",
    "Real-ESRGAN/weights",
)


def usual_places() -> tuple[Place, ...]:
    """Where users of other programs already have such files."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    hugging = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    return (
        *(Place(base / name) for base in (Path.cwd(), home) for name in _NEAR),
        Place(Path(os.environ.get("HF_HUB_CACHE") or hugging / "hub"), 5),
        Place(Path(os.environ.get("MODELSCOPE_CACHE") or home / ".cache" / "modelscope"), 5),
    )


def _scan(place: Place) -> list[os.DirEntry[str]]:
    """The files of a place."""
    return list(itertools.islice(_files(place.folder, place.depth), _MAX_ENTRIES))


def _files(folder: str | Path, depth: int) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError:  # not there, or not ours to read
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            if entry.is_file():
                yield entry
            elif depth and entry.is_dir():
                yield from _files(entry.path, depth - 1)


@dataclass(frozen=True)
class Store:
    """The weights of this machine.

    Attributes:
        settings: cache folder, mirrors, time-out, whether to stay offline.
        places: folders of other programs to look into.
    """

    settings: Settings
    places: tuple[Place, ...] = field(default_factory=usual_places)

    @property
    def folder(self) -> Path:
        """Where our own files lie."""
        return self.settings.cache / "weights"

    # ---- looking ------------------------------------------------------------------------------------------

    def find(
        self,
        file: WeightFile,
        *,
        weights: Path | None = None,
        sha256: str | None = None,
        allow_unverified: bool = False,
    ) -> Located | None:
        """Where the file is: at or in ``weights`` (a file or folder), in our cache, or where others keep it.

        Args:
            file: what to look for.
            weights: a file to use under whatever name, or a folder to search first.
            sha256: the sum it must have, for a file without a published one.
            allow_unverified: take ``weights`` although its sum is not the published one.

        Raises:
            ModelError: ``weights`` does not exist or is something else, or our own copy is damaged.
        """
        located, problem = self._search(file, weights, sha256, allow_unverified)
        if located is None and problem is not None:
            raise ModelError(problem)
        return located

    def get(
        self,
        file: WeightFile,
        *,
        weights: Path | None = None,
        sha256: str | None = None,
        allow_unverified: bool = False,
        offline: bool | None = None,
        progress: Progress | None = None,
    ) -> Located:
        """``find`` the file, or else ``fetch`` it.

        Raises:
            ModelError: as those two raise it.
        """
        found = self.find(file, weights=weights, sha256=sha256, allow_unverified=allow_unverified)
        return found or self.fetch(file, sha256=sha256, offline=offline, progress=progress)

    def missing(self, files: Iterable[WeightFile]) -> list[WeightFile]:
        """Those of the files that are nowhere, so that all can be named at once."""
        return [file for file in files if self.find(file) is None]

    def listing(self) -> list[Entry]:
        """Every known file and its state."""
        entries, scan = [], functools.cache(_scan)
        for file in FILES.values():
            located, problem = self._search(file, None, None, False, scan=scan)
            entries.append(Entry(file, located, problem, self.is_accepted(file.terms)))
        return entries

    def verify(self, file: WeightFile, *, weights: Path | None = None) -> Located:
        """Read the file again and compare its sum, whatever was remembered.

        Raises:
            ModelError: it is missing or not what it should be.
        """
        located, problem = self._search(file, weights, None, False, rehash=True)
        if located is None:
            raise ModelError(problem or self.how_to_get(file))
        return located

    def how_to_get(self, file: WeightFile) -> str:
        """One line for people without a network here: name, size, sum, addresses, where to put the file."""
        size = f"{file.size} bytes" if file.size else "size not known"
        return (
            f"{file.id} needs {file.name} ({size}, sha256 {file.sha256 or 'not known'}), which is not here:"
            f" get it from {' or '.join(file.urls)} and put it into {self.folder}, or use --weights"
        )

    def _search(
        self,
        file: WeightFile,
        weights: Path | None,
        sha256: str | None,
        allow_unverified: bool,
        rehash: bool = False,
        scan: Callable[[Place], list[os.DirEntry[str]]] = _scan,
    ) -> tuple[Located | None, str | None]:
        """The file, or None and what is wrong with our own copy if there is one."""
        sha256 = _checked_sum(file, sha256)
        given = weights or self.settings.weights
        if given is not None:
            if weights and weights.is_file():
                return self._judge(file, weights, "given", sha256, allow_unverified, rehash), None
            if not given.is_dir():
                name = "--weights" if weights else "LEANFACE_WEIGHTS"
                raise ModelError(f"{name} {given} is not there; name an existing folder of weights")
            for path, named in _candidates(file, scan(Place(given, 4)), given=True):
                with contextlib.nullcontext() if named else contextlib.suppress(ModelError):
                    return self._judge(file, path, "given", sha256, allow_unverified, rehash), None
        problem = None
        own = self.folder / file.name
        if own.is_file():
            try:
                return self._judge(file, own, "cache", sha256, False, rehash), None
            except ModelError as error:
                problem = str(error)
        for place in self.places:
            for path, _ in _candidates(file, scan(place)):
                with contextlib.suppress(ModelError):
                    return self._judge(file, path, "found", sha256, False, rehash), None
        return None, problem

    def _judge(
        self,
        file: WeightFile,
        path: Path,
        origin: Origin,
        sha256: str | None,
        allow: bool,
        rehash: bool = False,
    ) -> Located:
        """The file at ``path`` if it may be used as ``file``.

        Raises:
            ModelError: it may not; says what it is instead, what was expected and what to do.
        """
        pin = self._pin(file)
        expected = sha256 or file.sha256 or pin
        accepted = {sum_ for sum_ in (expected, pin if origin == "cache" and not sha256 else None) if sum_}
        advice = {
            "given": "get it again, or use it as it is with --allow-unverified",
            "cache": f"delete it with `leanface models remove {file.id}` and get it again",
            "found": "get it again",
        }[origin]
        with _reading(path):
            size = path.stat().st_size
            with path.open("rb") as stream:
                head = stream.read(_HEAD)
            if weight_format(head) is None:
                raise ModelError(f"{path} is {describe(head)}; expected {file.name} ({file.id}); {advice}")
            if file.size not in (None, size) and accepted == {file.sha256} and not allow:
                raise ModelError(
                    f"{path} has {size} bytes, {file.name} ({file.id}) has {file.size}; {advice}"
                )
            digest = self._digest(path, rehash)
        if accepted and digest not in accepted and not allow:
            raise ModelError(
                f"{path} is not {file.name} ({file.id}): its sha256 is {digest},"
                f" expected {' or '.join(sorted(accepted))}; {advice}"
            )
        return Located(file, path, digest, digest == expected, origin)

    # ---- licences -----------------------------------------------------------------------------------------

    def is_accepted(self, licence: Licence) -> bool:
        """Whether exactly these terms were accepted on this machine."""
        try:
            return self._licence(licence).read_text("utf-8") == licence.text
        except (OSError, ValueError):
            return False

    def accept_licence(self, licence: Licence) -> None:
        """Remember that the user accepts these terms.

        Raises:
            ModelError: the cache folder is not writable.
        """
        with _writing(self.settings.cache):
            _write(self._licence(licence), licence.text)

    def _licence(self, licence: Licence) -> Path:
        return self.settings.cache / "licences" / f"{licence.id}.txt"

    # ---- fetching and keeping -----------------------------------------------------------------------------

    def fetch(
        self,
        file: WeightFile,
        *,
        sha256: str | None = None,
        offline: bool | None = None,
        progress: Progress | None = None,
    ) -> Located:
        """Download the file into our cache, unless it is there; an interrupted download goes on.

        Args:
            file: what to fetch.
            sha256: the sum it must have, for a file without a published one. Without it the sum of the first
                download is recorded and later downloads are held to that.
            offline: overrides the settings.
            progress: told how far it is.

        Raises:
            ModelError: offline; the licence is not accepted yet; no address gives the file; no space; our own
                copy is damaged (it is not deleted unasked). One line that says what to do.
        """
        sha256 = _checked_sum(file, sha256)
        target = self.folder / file.name
        if target.is_file():
            return self._judge(file, target, "cache", sha256, False)
        if self.settings.offline if offline is None else offline:
            raise ModelError(f"offline: {self.how_to_get(file)}")
        if not self.is_accepted(file.terms):
            terms = file.terms
            raise ModelError(
                f"{file.id} ({file.name}) has terms to accept before its first download: {terms.title}:"
                f" {terms.text} ({terms.url}); run it again with --accept-licence to accept them"
            )
        expected = sha256 or file.sha256 or self._pin(file)
        with _writing(self.folder), self._locked(file, progress) as part:
            if target.is_file():  # another process was faster
                return self._judge(file, target, "cache", sha256, False)
            digest = self._download(file, expected, part, progress)
            self._record(file, digest)
            part.replace(target)
            self._stamp(target, target.stat(), digest)
        return Located(file, target, digest, True, "cache")

    def import_file(
        self,
        source: Path,
        file: WeightFile | None = None,
        *,
        sha256: str | None = None,
        allow_unverified: bool = False,
        progress: Progress | None = None,
    ) -> Located:
        """Copy a file of the user's into our cache under its published name.

        Args:
            source: the file; it is left as it is.
            file: what it is; None finds out by its sum, or by its name where no sum is published.
            sha256: the sum it must have, for a file without a published one.
            allow_unverified: keep it as ``file`` although its sum is not the published one.
            progress: told how far it is.

        Raises:
            ModelError: it is missing, not weights, not the file it is said to be, or cannot be copied.
        """
        if not source.is_file():
            raise ModelError(f"there is no file {source} to import")
        file = file or self._identify(source)
        sha256 = _checked_sum(file, sha256)
        located = self._judge(file, source, "given", sha256, allow_unverified)
        target = self.folder / file.name
        with _writing(self.folder), self._locked(file, progress), _temporary(target) as path:
            if not (target.exists() and target.samefile(source)):
                size = source.stat().st_size
                _need_space(self.folder, size)
                with source.open("rb") as stream, path.open("wb") as copy:
                    digest = hashlib.sha256()
                    while chunk := stream.read(_CHUNK):
                        digest.update(chunk)
                        copy.write(chunk)
                        if progress:
                            progress(copy.tell(), size)
                    _flush(copy)
                if digest.hexdigest() != located.sha256:
                    raise ModelError(f"{source} changed while it was copied; import it again")
            self._record(file, located.sha256)
            if path.exists():
                path.replace(target)
            self._stamp(target, target.stat(), located.sha256)
        return Located(file, target, located.sha256, located.verified or file.sha256 is None, "cache")

    def remove(self, file: WeightFile) -> int:
        """Delete our own copy and what is left of its downloads; the bytes that this frees.

        A recorded first sum is kept, so that the next download is held to it.

        Raises:
            ModelError: there is nothing of ours to delete, or it cannot be deleted.
        """
        freed = []
        target = self.folder / file.name
        with _writing(self.folder), self._locked(file, None) as part:
            for path in (target, part, _source_of(part)):
                with contextlib.suppress(FileNotFoundError):
                    size = path.stat().st_size
                    path.unlink()
                    freed.append(size)
            if file.sha256:
                self._pin_path(file).unlink(missing_ok=True)
            self._stamp_path(target).unlink(missing_ok=True)
        if not freed:
            found = self._search(file, None, None, False)[0]
            hint = f"; the one at {found.path} is not ours to delete" if found else ""
            raise ModelError(f"{file.id} is not in our cache {self.folder}{hint}")
        return sum(freed)

    def _identify(self, source: Path) -> WeightFile:
        with _reading(source):
            digest = self._digest(source)
        for file in FILES.values():
            if digest in (file.sha256, self._pin(file)) or (file.sha256 is None and file.name == source.name):
                return file
        raise ModelError(
            f"{source} (sha256 {digest}) is none of the published files; say which one it stands for:"
            " leanface models import ID FILE"
        )

    # ---- what is remembered about files -------------------------------------------------------------------

    def _digest(self, path: Path, rehash: bool = False) -> str:
        """The file's sum, read from its stamp if it has not changed since."""
        before = path.stat()
        if not rehash:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stamp = json.loads(self._stamp_path(path).read_text("utf-8"))
                digest = stamp.get("sha256")
                if isinstance(digest, str) and stamp == _stamp(path, before, digest):
                    return digest
        with path.open("rb") as stream:
            digest = _hash(stream).hexdigest()
        if _stamp(path, path.stat(), digest) == _stamp(path, before, digest):
            self._stamp(path, before, digest)
        return digest

    def _stamp(self, path: Path, state: os.stat_result, digest: str) -> None:
        with contextlib.suppress(OSError):  # a read-only cache costs time, nothing else
            _write(self._stamp_path(path), json.dumps(_stamp(path, state, digest)))

    def _stamp_path(self, path: Path) -> Path:
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
        return self.folder / ".stamps" / f"{name}.json"

    def _pin(self, file: WeightFile) -> str | None:
        """The recorded sum: of a first download or, beside a published one, of the user's own variant."""
        try:
            return _sum(self._pin_path(file).read_text("ascii").strip())
        except (OSError, ValueError):
            return None

    def _pin_path(self, file: WeightFile) -> Path:
        return self.folder / ".pins" / f"{file.id}.sha256"

    def _record(self, file: WeightFile, digest: str) -> None:
        if digest == file.sha256:
            self._pin_path(file).unlink(missing_ok=True)
        else:
            _write(self._pin_path(file), f"{digest}\n")

    # ---- one writer at a time -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, file: WeightFile, progress: Progress | None) -> Iterator[Path]:
        """Hold the file's lock; yields the partial file to download into.

        Waits for another process as long as its download grows. On file systems without locks everybody gets
        a partial file of their own.
        """
        part = self.folder / f"{file.name}.part"
        lock = self.folder / ".locks" / f"{file.name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a+b") as handle:
            deadline, seen = 0.0, -1
            while (state := _try_lock(handle.fileno())) is False:
                done = part.stat().st_size if part.exists() else 0
                if done != seen:
                    deadline, seen = time.monotonic() + 10 * self.settings.timeout, done
                    if progress:
                        progress(done, file.size)
                elif time.monotonic() > deadline:
                    raise ModelError(
                        f"another process holds {lock} and does not get on; end it and try again"
                    )
                time.sleep(0.1)
            if state is None:
                with _temporary(self.folder / file.name) as private:
                    yield private
                return
            for stale in self.folder.glob(f".{file.name}.*.tmp"):  # of a process that was killed
                stale.unlink(missing_ok=True)
            try:
                yield part
            finally:
                _unlock(handle.fileno())

    # ---- the network --------------------------------------------------------------------------------------

    def _addresses(self, file: WeightFile) -> list[str]:
        """Mirrors first, then the published places."""
        addresses = []
        for mirror in self.settings.mirrors:
            if "{url}" in mirror:
                addresses += [mirror.replace("{url}", url) for url in file.urls]
            elif "{name}" in mirror:
                addresses.append(mirror.replace("{name}", file.name))
            else:
                addresses.append(f"{mirror.rstrip('/')}/{file.name}")
        return [*dict.fromkeys((*addresses, *file.urls))]

    def _download(self, file: WeightFile, expected: str | None, part: Path, progress: Progress | None) -> str:
        """Fill ``part`` with the right bytes; returns their sum.

        Raises:
            ModelError: no address gives them; what has come is kept where it may be of use.
        """
        size = file.size if expected == file.sha256 else None
        _need_space(self.folder, (size or file.about_size or 0) - _size(part))
        reasons = []
        for url in self._addresses(file):
            transfer = _Transfer(url, part, size, expected, self.settings.timeout, progress)
            try:
                return transfer.run()
            except _Unavailable as error:
                reasons.append(f"{urlsplit(url).netloc}: {error}")
        if _size(part):
            reasons.append(f"{_size(part)} bytes are kept, run it again to go on")
        if expected and expected == self._pin(file):
            reasons.append("the expected sum is that of the first download here, --sha256 takes another one")
        raise ModelError(f"cannot download {file.name}: {'; '.join(reasons)}; {self.how_to_get(file)}")


class _Unavailable(Exception):
    """Why an address does not give the file."""


class _BrokenOff(Exception):
    """The connection ended early; asking for the rest may help."""


@dataclass(frozen=True)
class _Transfer:
    """One file on its way from one address into a partial file.

    Attributes:
        url: the address.
        part: the partial file; what it holds already is not asked for again.
        size: exact bytes, or None.
        expected: its sum, or None. Without one, a part is only continued if the server proves (strong ETag)
            that it is still the same file.
        timeout: seconds of silence after which the server is given up.
        progress: told how far it is.
    """

    url: str
    part: Path
    size: int | None
    expected: str | None
    timeout: float
    progress: Progress | None

    def run(self) -> str:
        """Fill the part; returns its sum.

        Raises:
            _Unavailable: this address does not give the file.
        """
        failures, begun = 0, _size(self.part)
        while True:
            before = _size(self.part)
            try:
                digest = self._receive()
            except _BrokenOff as error:
                failures = failures + 1 if _size(self.part) - before < _STEP else 1
                if failures >= _TRIES:
                    raise _Unavailable(str(error)) from None
                time.sleep(_PAUSE * failures)
                continue
            if self.expected in (None, digest):
                _source_of(self.part).unlink(missing_ok=True)
                return digest
            self.part.unlink()
            if not begun:
                raise _Unavailable(f"the file there has the sha256 {digest} instead of {self.expected}")
            begun = 0  # the fault may lie in the bytes from an earlier run: once more from the start

    def _receive(self) -> str:
        """Ask for what is missing and append it to the part; returns the sum of all of it."""
        have = self._usable()
        if have and have == self.size:
            with self.part.open("rb") as stream:
                return _hash(stream).hexdigest()
        with self._open(have) as response:
            total = None if response.length is None else have + response.length
            if response.status == 206:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                    self.part.unlink(missing_ok=True)
                    raise _BrokenOff("answers with another range than the one asked for")
            elif response.status == 200:  # the whole file, whatever was asked for
                have, total = 0, response.length
            else:
                raise _Unavailable(f"HTTP {response.status} {response.reason}")
            if response.headers.get_content_type() == "text/html":
                raise _Unavailable("answers with a web page instead of the file")
            if total is None and self.size is None and self.expected is None:
                raise _Unavailable("does not say how long the file is")
            if total is not None and self.size not in (None, total):
                raise _Unavailable(f"the file there has {total} bytes instead of {self.size}")
            if have == 0 and self.expected is None:
                etag = response.headers.get("ETag", "")
                _write(_source_of(self.part), f"{self.url}\n{etag}" if etag.startswith('"') else "")
            total = self.size or total
            _need_space(self.part.parent, (total or 0) - have)
            return self._body(response, have, total)

    def _usable(self) -> int:
        """How many bytes of the part can be kept."""
        have = _size(self.part)
        too_long = self.size is not None and have > self.size
        return 0 if too_long or (self.expected is None and not self._etag()) else have

    def _etag(self) -> str | None:
        """The mark of the very file that the part was begun with at this address."""
        with contextlib.suppress(OSError, ValueError):
            url, _, etag = _source_of(self.part).read_text("utf-8").partition("\n")
            if url == self.url and etag:
                return etag
        return None

    def _open(self, have: int) -> http.client.HTTPResponse:
        import http.client
        import urllib.error
        import urllib.request

        headers = {"User-Agent": "leanface", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        if have and self.expected is None:
            headers["If-Range"] = self._etag() or ""
        try:
            request = urllib.request.Request(self.url, headers=headers)
            response: http.client.HTTPResponse = _opener().open(request, timeout=self.timeout)
            return response
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and have:
                self.part.unlink()
                raise _BrokenOff("has no such range") from None
            raise _Unavailable(f"HTTP {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise _Unavailable(f"no answer within {self.timeout:g} s") from None
            raise _Unavailable(" ".join(f"{type(reason).__name__}: {reason}".split())) from None

    def _body(self, response: http.client.HTTPResponse, have: int, total: int | None) -> str:
        with self.part.open("r+b" if have else "wb") as out:
            digest = _hash(out) if have else hashlib.sha256()
            done, head = have, b""
            window, since = done, time.monotonic()
            while done != total and (chunk := self._read(response, (total or _MAX_BYTES) - done)):
                if have == 0 and len(head) < _HEAD:
                    head += chunk[:_HEAD]
                    if len(head) >= _HEAD:
                        _check_head(head, out)
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if self.progress:
                    self.progress(done, total)
                now = time.monotonic()
                if now - since > self.timeout:
                    if done - window < _MIN_RATE * (now - since):
                        raise _Unavailable(f"slower than {_MIN_RATE} bytes/s, given up after {done} bytes")
                    window, since = done, now
                if done >= _MAX_BYTES:
                    raise _Unavailable(f"sends more than {_MAX_BYTES} bytes")
            if total is not None and done < total:
                raise _BrokenOff(f"broke off after {done} of {total} bytes")
            if have == 0 and len(head) < _HEAD:
                _check_head(head, out)
            _flush(out)
        return digest.hexdigest()

    def _read(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        """What has come, at most ``limit`` bytes; nothing at the end."""
        import http.client

        try:
            return response.read1(min(_CHUNK, limit))
        except TimeoutError:
            raise _Unavailable(f"sent nothing for {self.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenOff(f"broke off ({type(error).__name__})") from None


def _opener() -> urllib.request.OpenerDirector:
    """Opens addresses and follows redirects, but not from an encrypted to an unencrypted address."""
    import urllib.error
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(
            self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> urllib.request.Request | None:
            if urlsplit(newurl).scheme not in ("https", urlsplit(req.full_url).scheme):
                raise urllib.error.HTTPError(newurl, code, f"leads to {newurl}: refused", headers, fp)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return urllib.request.build_opener(Redirects)


# ---- small helpers ---------------------------------------------------------------------------------------


def _checked_sum(file: WeightFile, text: str | None) -> str | None:
    """A sum that the user gave, in lower case.

    Raises:
        UsageError: it is not one, or contradicts the published one.
    """
    if text is None:
        return None
    digest = _sum(text.strip().lower())
    if digest is None:
        raise UsageError(f"{text!r} is not a sha256: 64 hexadecimal digits")
    if file.sha256 not in (None, digest):
        raise UsageError(f"the published sha256 of {file.id} is {file.sha256}, not {digest}")
    return digest


def _sum(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{64}", text) else None


def _check_head(head: bytes, part: BinaryIO) -> None:
    """Give an address up at the first bytes of something that is not weights; nothing of it is kept."""
    if weight_format(head) is None:
        part.truncate(0)
        raise _Unavailable(f"gives {describe(head)} instead of the file")


def _candidates(
    file: WeightFile, entries: Iterable[os.DirEntry[str]], given: bool = False
) -> Iterator[tuple[Path, bool]]:
    """Files that may be the one: by exact name (True), or under another name by exact size (False)."""
    suffix = Path(file.name).suffix
    for entry in entries:
        path = Path(entry.path)
        if entry.name == file.name:
            if given or file.folder is None or file.folder in path.parts:
                yield path, True
        elif file.sha256 and file.size and path.suffix.lower() == suffix and _size(path) == file.size:
            yield path, False


def _stamp(path: Path, state: os.stat_result, digest: str) -> dict[str, str | int]:
    return {
        "path": str(path.absolute()),
        "size": state.st_size,
        "mtime_ns": state.st_mtime_ns,
        "sha256": digest,
    }


def _hash(stream: BinaryIO) -> hashlib._Hash:
    """The running sum of all that is left of a stream."""
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest


def _size(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _source_of(part: Path) -> Path:
    """Where the address and mark of a partial file without a known sum are noted."""
    return part.with_name(f"{part.name}.from")


def _need_space(folder: Path, need: int) -> None:
    import shutil

    free = shutil.disk_usage(folder).free
    if need > 0 and need + _MARGIN > free:
        raise ModelError(
            f"{folder} has {free >> 20} MB free but {(need + _MARGIN) >> 20} MB are needed:"
            " free some, or name another folder with LEANFACE_CACHE"
        )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of the file system into ours."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Make the folder and turn errors of the file system into ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ModelError(
            f"cannot write to {folder}: {error.strerror or error}; name another folder with LEANFACE_CACHE"
        ) from None


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A name beside ``target`` that nobody else uses; what is left there is deleted."""
    path = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Write a small file as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path) as temporary:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)


def _flush(stream: BinaryIO) -> None:
    """Bring a file to the disk before it gets its final name."""
    stream.flush()
    os.fsync(stream.fileno())


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool | None:
        """Whether the lock is ours now; None where the file system has no locks."""
        os.lseek(handle, 0, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            return False if error.errno in (errno.EACCES, errno.EDEADLK) else None
        return True

    def _unlock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(handle: int) -> bool | None:
        """Whether the lock is ours now; None where the file system has no locks."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
        return True

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)
