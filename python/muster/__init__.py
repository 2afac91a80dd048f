"""Muster from Python: submit jobs, watch them, and read what they have learned.

    import muster

    with muster.Client() as client:
        job = client.jobs.submit("examples/linear.yaml")
        job = client.jobs.wait(job)
        losses = client.metrics(job)["loss"]["value"]
        values = client.checkpoints.read(job)

docs/python.md shows more.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster import errors
    from muster.checkpoints import read_checkpoint
    from muster.client import Client
    from muster.errors import LoopError, Suspended, WorkerLost
    from muster.results import Checkpoint, Evaluation, Event, Job, Update

__all__ = ["Checkpoint", "Client", "Evaluation", "Event", "Job", "LoopError", "Suspended", "Update", "WorkerLost", "errors",
           "read_checkpoint"]

_MODULES = {"Client": "client", "LoopError": "errors", "Suspended": "errors", "WorkerLost": "errors", "errors": "errors",
            "read_checkpoint": "checkpoints"}


def __getattr__(name: str) -> Any:
    """Imports a part of the package when it is first used, so that `import muster` is fast and needs no other package."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("muster-train")
    if name not in __all__:
        raise AttributeError(f"module 'muster' has no attribute '{name}'")
    module = importlib.import_module(f"muster.{_MODULES.get(name, 'results')}")
    value = module if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value
