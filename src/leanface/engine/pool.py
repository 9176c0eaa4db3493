"""Sessions, opened when first needed and kept until closed; which engine serves which device."""

from __future__ import annotations

from types import TracebackType

from leanface.engine import device as machine
from leanface.engine.backends import onnxruntime, openvino, torch
from leanface.engine.session import Engine, Graph, Session
from leanface.errors import DeviceError

ENGINES: tuple[Engine, ...] = (onnxruntime, openvino, torch)
DEVICES = tuple(name for engine in ENGINES for name in engine.DEVICES)
_FASTER = ("cuda", "directml", "coreml")  # than the processor; the best first


def choose_device() -> str:
    """What ``auto`` stands for: a card that the user installed ONNX Runtime for, else the processor."""
    offered = onnxruntime.devices()
    return next((name for name in _FASTER if name in offered), "cpu")


def resolve(device: str, precision: str, bears: tuple[str, ...], *, typed: bool = False) -> tuple[str, str]:
    """The device and precision that a request comes to.

    Args:
        device: one of ``DEVICES``, ``cuda:N``, or ``auto``.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``auto``.
        bears: the precisions that the network's results survive.
        typed: its graph can be had in 16-bit types.

    Raises:
        DeviceError: the device is not there (says what is) or cannot do that precision.
    """
    name = choose_device() if device == "auto" else device
    return name, _engine(name).choose_precision(name, precision, bears, typed=typed)


def leaner(
    device: str, precision: str, bears: tuple[str, ...], *, typed: bool = False
) -> tuple[str, str] | None:
    """What to try after an out-of-memory: the same device in 16 bits, then the processor; None at the end."""
    engine = _engine(device)
    if precision == "fp32":
        for fewer in ("fp16", "bf16"):
            try:
                return device, engine.choose_precision(device, fewer, bears, typed=typed)
            except DeviceError:
                continue  # not in that one
    return None if device == "cpu" else resolve("cpu", "auto", bears, typed=typed)


def memory_in_use(device: str) -> tuple[str, int]:
    """``GPU`` and the bytes that this process holds on the card it computes on; ``CPU`` and its resident
    memory where it computes on the processor or the card's driver does not tell."""
    for engine in ENGINES:
        if device.partition(":")[0] in engine.DEVICES and (held := engine.card_bytes(device)):
            return "GPU", held
    return "CPU", machine.resident_bytes()


class Pool:
    """Sessions by graph, device and precision. A context manager; not for use by several threads at once.

    Args:
        threads: processor threads; None takes all cores.
        limit: bytes that a session may take of a graphics card, where its engine can hold that.
    """

    def __init__(self, *, threads: int | None = None, limit: int | None = None) -> None:
        self.threads = threads or machine.cores()
        self.limit = limit
        self._sessions: dict[tuple[Graph, str, str], Session] = {}

    def session(self, graph: Graph, *, device: str, precision: str) -> Session:
        """The session of a graph, opened at the first call.

        Args:
            graph: what to run.
            device: as ``resolve`` gave it.
            precision: as ``resolve`` gave it.

        Raises:
            DeviceError: the device does not run it.
            ModelError: the engine cannot read the graph.
            OutOfMemoryError: there is not enough memory.
        """
        key = graph, device, precision
        if key not in self._sessions:
            self._sessions[key] = _engine(device).open_session(
                graph, device=device, precision=precision, threads=self.threads, limit=self.limit
            )
        return self._sessions[key]

    def keep_only(self, graph: Graph) -> None:
        """Free the sessions of all other graphs."""
        for key in [key for key in self._sessions if key[0] != graph]:
            self._sessions.pop(key).close()

    def discard(self, session: Session) -> None:
        """Free one session."""
        for key, kept in list(self._sessions.items()):
            if kept is session:
                del self._sessions[key]
        session.close()

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


def _engine(device: str) -> Engine:
    """The engine of a device.

    Raises:
        DeviceError: the device is not there; says what is.
    """
    name = device.partition(":")[0]
    for engine in ENGINES:
        if name in engine.DEVICES and name in engine.devices():
            return engine
    # PyTorch takes seconds to load: what it has is told to those who ask for it.
    asked = [engine for engine in ENGINES if engine is not torch or name in torch.DEVICES]
    here = ", ".join(name for engine in asked for name in engine.devices())
    hint = "; it needs a build of onnxruntime for it" if name in onnxruntime.DEVICES else ""
    hint = "; it needs a build of PyTorch for it" if name in torch.DEVICES else hint
    raise DeviceError(f"device {device} is not here{hint}; there is {here}")
