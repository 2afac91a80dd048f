// Formats jobs, members and checkpoints for people.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cli/text/output.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

bool IsTerminal(v1::JobState state);

// Returns "860/2000", or "860" while the number of steps is unknown.
std::string StepText(const v1::JobProgress& progress);

// Returns a line such as
//   gpt-1 RUNNING  43% step 860/2000  loss 1.734  812 samples/s  eta 00:01:10  2/2 workers 2/2 ps
// without the parts on the right that exceed `width` characters. With `color` the state is colored,
// which takes no width.
std::string ProgressLine(const v1::Job& job, int width, bool color = false);

std::string JobTable(absl::Span<const v1::Job> jobs, absl::Time now);
// Returns JobTable() with more columns: the priority, the labels, the last checkpoint, and why a
// job waits.
std::string WideJobTable(absl::Span<const v1::Job> jobs, absl::Time now);
// Returns "team=vision,tier=1", sorted by key, or "-" if there are no labels.
std::string LabelText(const v1::Job& job);
// Sorts jobs by a column ("age", "name", "state", "step", "loss", "priority" or "queue"). A minus
// before the name reverses the order. Returns INVALID_ARGUMENT, with the known columns, if there is
// no such column.
absl::Status SortJobs(const std::string& column, std::vector<v1::Job>& jobs);
std::string MemberTable(absl::Span<const v1::Member> members, absl::Time now);
// Returns a warning that says whether the coordinator, and how many members, were started with
// --insecure. Returns "" if none was.
std::string InsecureNotice(const v1::ListMembersResponse& fleet);
std::string CheckpointTable(absl::Span<const v1::Checkpoint> checkpoints, absl::Time now);

// Returns "2026-11-21 12:53:15 UTC  RUNNING  STARTED  2 workers, 2 ps".
std::string EventLine(const v1::JobEvent& event);

// Returns everything about one job: state, progress, members, spec and events.
std::string DescribeJob(const v1::Job& job, absl::Span<const v1::JobEvent> events, absl::Time now);

// Returns the result of a finished job: state, losses and checkpoint.
std::string JobSummary(const v1::Job& job, const std::string& checkpoint);

// Returns a line "warning: ..." for each warning.
std::string WarningLines(const std::vector<std::string>& warnings);

// Returns "warning: OTHER_DATA: ..." for an event that a user should read, or "". The last event of
// a job is none: its reason and message are in the job.
std::string WarningLine(const v1::JobEvent& event);

// Returns whether the job succeeded and its last loss was finite: its reason is not NONFINITE_LOSS.
bool TrainedWell(const v1::Job& job);

}  // namespace muster::cli
