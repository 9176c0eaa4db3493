"""``python -m leanface`` is the ``leanface`` command."""

from leanface.cli import run

if __name__ == "__main__":
    run()
