"""Progress bars, by tqdm if it is installed."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Optional


class Progress:
    """A bar on the terminal or in the notebook. Does nothing if it is not shown, or without tqdm. A context manager."""

    def __init__(self, title: str, unit: str, shown: bool, total: int = 0) -> None:
        self._bar: Any = None
        if shown:
            try:
                tqdm = importlib.import_module("tqdm.auto").tqdm
            except ImportError:
                return
            self._bar = tqdm(desc=title, unit=unit, total=total or None, unit_scale=unit == "B", unit_divisor=1024)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def set(self, done: int, total: int = 0, note: str = "") -> None:
        if self._bar is None:
            return
        self._bar.total = total or self._bar.total
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)  # also backwards: a job may go back to its checkpoint


def is_interactive() -> bool:
    """Returns whether a person watches: a terminal or a notebook."""
    return "ipykernel" in sys.modules or bool(sys.stderr and sys.stderr.isatty())


def choose(progress: Optional[bool]) -> bool:
    return is_interactive() if progress is None else progress
