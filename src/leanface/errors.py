"""One tree of errors. Each class knows the exit code of a command that it ends and the matching HTTP status.

A message is one line: what happened, to which file, and what to do about it.
"""


class LeanfaceError(Exception):
    """Base of every error that leanface raises on purpose."""

    exit_code = 4
    http_status = 500


class UsageError(LeanfaceError):
    """The request itself cannot be carried out: a wrong option, value or combination."""

    exit_code = 2
    http_status = 400


class InputError(LeanfaceError):
    """An input file is missing, empty, damaged, not a picture or too large."""

    http_status = 422


class OutputError(LeanfaceError):
    """A result cannot be written: the place exists already, is not writable or is full."""


class ModelError(LeanfaceError):
    """A model's file is missing, damaged, or not what was asked for."""

    exit_code = 2
    http_status = 503


class DeviceError(LeanfaceError):
    """The device or precision asked for is not there."""

    exit_code = 2
    http_status = 503


class EngineError(LeanfaceError):
    """A network failed on one picture."""


class OutOfMemoryError(EngineError):
    """There was not enough memory for a network, on a card or in the process."""


class BrokenOutputError(EngineError):
    """A network's result is no picture: not finite numbers, or black for a picture that is not."""


class BudgetError(LeanfaceError):
    """The memory limit is below the least that would do."""

    exit_code = 2
    http_status = 507
