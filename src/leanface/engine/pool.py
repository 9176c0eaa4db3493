"""Sessions, opened when first needed and kept until closed."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from leanface.engine import device as machine
from leanface.engine.backends import openvino
from leanface.engine.session import Session


class Pool:
    """At most one session per graph file. A context manager; not for use by several threads at once."""

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads or machine.cores()
        self._sessions: dict[Path, Session] = {}

    def session(self, model: Path, *, device: str, precision: str, bears: tuple[str, ...]) -> Session:
        """The session of a graph file, opened at the first call.

        Args:
            model: the ONNX file.
            device, precision: what to open it with; see the engine.
            bears: the precisions that the network's results survive.

        Raises:
            DeviceError, ModelError: the engine cannot load it.
        """
        if model not in self._sessions:
            self._sessions[model] = openvino.open_session(
                model, device=device, precision=precision, bears=bears, threads=self.threads
            )
        return self._sessions[model]

    def close(self) -> None:
        """Free all sessions; they are opened anew when needed."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
