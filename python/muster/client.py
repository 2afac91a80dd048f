"""A client of a coordinator: muster.Client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

import numpy as np
import numpy.typing as npt

from muster import _destination, _progress, _proto
from muster._connection import Connection
from muster.checkpoints import Checkpoints
from muster.jobs import JobRef, Jobs
from muster.results import job_id

_SERIES = np.dtype([("step", np.int64), ("value", np.float64), ("time", np.float64)])


class Client:
    """A connection to a coordinator, with its jobs, metrics and checkpoints. Thread-safe, and a context manager.

    The coordinator is the first of these that is given, as in the command line:

    1. `server`, "HOST:PORT", several with commas; or `context`, a name of `muster context list`
    2. the environment variable MUSTER_SERVER, or MUSTER_CONTEXT
    3. the current context
    4. the local cluster that `muster local up` started
    5. 127.0.0.1:7070

    `tls` is a folder with ca.crt and, unless there is a token, tls.crt and tls.key (or MUSTER_TLS). `token_file` holds a
    token (or MUSTER_TOKEN_FILE). Both may come from the context.

    A client that has reached its coordinator bridges outages of up to `patience` seconds. `progress` says whether `wait`
    and downloads show a bar; the default is yes on a terminal and in a notebook, if tqdm is installed.
    """

    def __init__(self, server: Optional[str] = None, *, tls: Optional[str] = None, token_file: Optional[str] = None,
                 context: Optional[str] = None, patience: float = 300.0, progress: Optional[bool] = None) -> None:
        self._connection = Connection(_destination.find(server, tls, token_file, context), patience)
        shows = _progress.choose(progress)
        self.jobs = Jobs(self._connection, shows)
        self.checkpoints = Checkpoints(self._connection, shows)

    @property
    def where(self) -> str:
        """Returns the coordinator, for messages: "host:7070 (context prod)"."""
        return self._connection.where

    def metrics(self, job: JobRef, series: Sequence[str] = (), *, first_step: int = 0, last_step: int = 0,
                points: int = 10_000) -> Dict[str, npt.NDArray[Any]]:
        """Returns the metrics of a job: a NumPy array for each series, with the fields "step", "value" and "time".

        Series are "loss", "gradient_norm", "learning_rate", "samples_per_second", "loss_scale", "evaluation_loss" and
        "evaluation_accuracy"; by default all that exist. Times are seconds since 1970, NaN if unknown. If there are more
        steps than `points`, at most 10,000, each stretch keeps its smallest and its largest value. `last_step` 0 means
        the end.
        """
        request = _proto.new("ReadJobMetricsRequest", name=f"jobs/{job_id(job)}", series=series, first_step=first_step,
                             last_step=last_step, points=points)
        response = self._connection.call("JobService.ReadJobMetrics", request)
        metrics: Dict[str, npt.NDArray[Any]] = {}
        for each in response.series:
            array = np.empty(len(each.steps), dtype=_SERIES)
            array["step"], array["value"] = each.steps, each.values
            array["time"] = each.times if len(each.times) == len(each.steps) else np.nan
            metrics[each.name] = array
        return metrics

    def close(self) -> None:
        """Closes the connection. Jobs go on."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"muster.Client({self.where!r})"
