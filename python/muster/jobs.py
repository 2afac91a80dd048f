"""The jobs of a coordinator: `client.jobs`."""

from __future__ import annotations

import math
import pathlib
import re
import time
import uuid
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from muster import _proto, _spec, errors
from muster._connection import Connection, Retry
from muster._destination import is_local_cluster
from muster._progress import Progress
from muster.results import Job, Update, event_of, job_id, job_of

_CREATE_SECONDS = 600.0  # the coordinator imports the model and opens the data
_PAGE = 500
# "I20261129 02:11:46.746656  2376 parameter_server.cc:99] linear-1: ..."
_LOG_LINE = re.compile(r"[IWEF]\d{8} [^\]]*\] (?P<message>.*)")
_LEADING_JOB = re.compile(r"([a-z0-9-]+-\d+)(?=:|,| generation | cannot )")

JobRef = Union[Job, str]


class Jobs:
    """Submits, watches and changes jobs. A job is given as a Job or by its id, "linear-1"."""

    def __init__(self, connection: Connection, progress: bool) -> None:
        self._connection = connection
        self._progress = progress

    def submit(self, job: _spec.JobLike, *, overrides: Optional[Mapping[str, Any]] = None,
               request_id: Optional[str] = None, validate_only: bool = False) -> Job:
        """Queues a job and returns it.

        `job` is a path of a job file, YAML text, or a dict of the same form (docs/job_spec.md). `overrides` replaces
        single fields: {"training.steps": 500}. Two submissions with one `request_id` make one job. With `validate_only`
        the job is checked and not stored.

        Raises InvalidSpecError with every fault: `.faults` has their field paths and, in YAML, their lines.
        """
        spec, places = _spec.read(job, overrides or {})
        if self._reads_files_of_this_host():
            _spec.make_paths_absolute(spec, pathlib.Path.cwd())
        # The coordinator may have created the job before a connection broke. The id lets it recognize the retry.
        request = _proto.new("CreateJobRequest", spec=spec, request_id=request_id or str(uuid.uuid4()),
                             validate_only=validate_only)
        try:
            return job_of(self._connection.call("JobService.CreateJob", request, timeout=_CREATE_SECONDS))
        except errors.InvalidSpecError as error:
            located = [errors.Fault(each.field, each.message, places.of(each.field)) for each in error.faults]
            raise _spec.spec_error(located, error.reason) from None

    def get(self, job: JobRef) -> Job:
        """Returns the job as it is now."""
        return job_of(self._call("GetJob", job))

    def list(self, *, states: Sequence[str] = (), selector: str = "") -> List[Job]:
        """Jobs, newest first: only in these `states`, and with labels that match: "team=vision,!old"."""
        jobs: List[Job] = []
        request = _proto.new("ListJobsRequest", page_size=_PAGE, selector=selector,
                             states=[_state(state) for state in states])
        while True:
            response = self._connection.call("JobService.ListJobs", request)
            jobs += map(job_of, response.jobs)
            request.page_token = response.next_page_token
            if not request.page_token:
                return jobs

    def watch(self, job: JobRef, *, timeout: Optional[float] = None) -> Iterator[Update]:
        """Yields the job as it is, then at every change and about once a second while it runs, until it ends.

        No event is left out or repeated, also over outages of the coordinator. Raises DeadlineExceededError after
        `timeout` seconds.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        request = _proto.new("WatchJobRequest", name=f"jobs/{job_id(job)}")
        retry = Retry(self._connection)
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                for response in self._connection.stream("JobService.WatchJob", request, timeout=left):
                    retry.succeeded()
                    if response.events:
                        request.revision = response.events[-1].revision
                    update = Update(job_of(response.job), tuple(map(event_of, response.events)))
                    yield update
                    # A message holds a limited number of events; the others follow.
                    if update.job.ended and request.revision >= response.job.revision:
                        return
                error: errors.MusterError = errors.UnavailableError(f"{self._connection.where} ended the watch")
            except errors.DeadlineExceededError:
                raise errors.DeadlineExceededError(
                    f"{job_id(job)} has not ended within {timeout} s; it goes on without the watch") from None
            except errors.MusterError as broken:
                error = broken
            retry.wait(error, seconds_max=left)

    def wait(self, job: JobRef, *, state: str = "SUCCEEDED", timeout: Optional[float] = None,
             progress: Optional[bool] = None) -> Job:
        """Blocks until the job is in `state`, and returns it.

        Raises JobEndedError, with the job's reason and message, if the job ends in another state. Raises
        DeadlineExceededError after `timeout` seconds; the job continues.
        """
        _state(state)  # a state that does not exist is an error now
        name = state.upper()
        is_first = True
        with Progress(job_id(job), "step", self._progress if progress is None else progress) as bar:
            try:
                for update in self.watch(job, timeout=timeout):
                    now = update.job
                    bar.set(now.step, now.total_steps, now.state + ("" if now.loss is None else f", loss {now.loss:.4g}"))
                    # The first update has events from before the wait. Later ones may hold a state that has passed.
                    passed = not is_first and any(event.state == name for event in update.events)
                    if now.state == name or passed:
                        return now
                    is_first = False
            except errors.DeadlineExceededError:
                raise errors.DeadlineExceededError(
                    f"{job_id(job)} was not {name} within {timeout} s; it goes on") from None
        raise errors.JobEndedError(f"{now.id} has ended ({now.state}) and was not {name}: {now.message}",
                                   reason=now.reason, job=now)

    def suspend(self, job: JobRef, *, wait: bool = False) -> Job:
        """Takes a checkpoint and releases the members. Returns at once, or with `wait` when the job is SUSPENDED."""
        suspended = job_of(self._call("SuspendJob", job))
        return self.wait(suspended, state="SUSPENDED", progress=False) if wait else suspended

    def resume(self, job: JobRef, *, workers_min: int = 0, workers_max: int = 0, ps: int = 0) -> Job:
        """Queues a suspended job again. It continues at its next step. The numbers replace the job's; 0: as in the job."""
        request = _proto.new("ResumeJobRequest", name=f"jobs/{job_id(job)}")
        if workers_min or workers_max or ps:
            resources = request.resources
            resources.CopyFrom(self.get(job).proto.spec.resources)
            resources.workers.min = workers_min or resources.workers.min
            resources.workers.max = workers_max or resources.workers.max
            resources.ps = ps or resources.ps
        return job_of(self._connection.call("JobService.ResumeJob", request))

    def cancel(self, job: JobRef) -> Job:
        """Ends the job at once. Its checkpoints stay."""
        return job_of(self._call("CancelJob", job))

    def delete(self, job: JobRef) -> None:
        """Deletes a job that has ended, with its events and checkpoints."""
        self._call("DeleteJob", job)

    def logs(self, job: JobRef, *, lines: int = 100) -> Dict[str, str]:
        """Returns the last lines of the log of each member of the job, without lines of other jobs.

        Members that are no longer attached are left out. Raises NotFoundError or UnavailableError if that leaves none.
        """
        now = self.get(job)
        logs: Dict[str, str] = {}
        missing: Optional[errors.MusterError] = errors.NotFoundError(f"{now.id} has no members ({now.state})")
        for member in sorted({*now.workers, *now.ps}):
            request = _proto.new("ReadMemberLogRequest", name=member)
            try:
                text: bytes = self._connection.call("FleetService.ReadMemberLog", request, retry=False).text
            except (errors.NotFoundError, errors.UnavailableError) as error:
                missing = error
                continue
            kept = _without_other_jobs(text.decode("utf-8", "replace"), now.id, member)
            logs[member] = "".join(kept[-lines:])
        if missing is not None and not logs:
            raise missing
        return logs

    def _call(self, method: str, job: JobRef) -> Any:
        request = _proto.new(f"{method}Request", name=f"jobs/{job_id(job)}")
        return self._connection.call(f"JobService.{method}", request)

    def _reads_files_of_this_host(self) -> bool:
        """Returns whether the coordinator belongs to a local cluster on this host. Relative paths then begin at the current folder."""
        address = self._connection.destination.addresses[0]
        if not address.startswith(("127.", "localhost:", "[::1]:")):
            return False
        try:  # an address of this host may also be a tunnel to another one
            info = self._connection.call("JobService.GetServerInfo", _proto.new("GetServerInfoRequest"))
        except errors.PermissionDeniedError:
            return False
        return is_local_cluster(info.state_dir)


def _state(name: str) -> int:
    """Returns the number of a state, "running"."""
    values = _proto.message_type("muster.v1.Job").DESCRIPTOR.fields_by_name["state"].enum_type.values
    numbers: Dict[str, int] = {value.name: value.number for value in values if value.number}
    if name.upper() not in numbers:
        raise errors.InvalidArgumentError(f"'{name}' is not a state of a job; known: {', '.join(numbers)}")
    return numbers[name.upper()]


def _without_other_jobs(text: str, job: str, member: str) -> List[str]:
    """Returns the lines without those of other jobs. A line without a prefix belongs to the line before it."""
    kept: List[str] = []
    keeps = True
    for line in text.splitlines(keepends=True):
        if (prefixed := _LOG_LINE.match(line)) is not None:
            about = _LEADING_JOB.match(prefixed["message"])
            keeps = about is None or about[1] in (job, member)
        if keeps:
            kept.append(line)
    return kept
