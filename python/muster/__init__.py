"""Muster from Python: submit jobs, watch them, and read what they have learned.

    import muster

    with muster.Client() as client:
        job = client.jobs.submit("examples/linear.yaml")
        job = client.jobs.wait(job)
        losses = client.metrics(job)["loss"]["value"]
        values = client.checkpoints.read(job)

docs/python.md shows more.
"""

from muster import errors
from muster.checkpoints import read_checkpoint
from muster.client import Client
from muster.results import Checkpoint, Evaluation, Event, Job, Update

__all__ = ["Checkpoint", "Client", "Evaluation", "Event", "Job", "Update", "errors", "read_checkpoint"]
