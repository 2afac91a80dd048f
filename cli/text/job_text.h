// Jobs, members and checkpoints as people read them.
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

// "860/2000", or "860" while the number of steps is not known.
std::string StepText(const v1::JobProgress& progress);

// "char-gpt-1 RUNNING  43% step 860/2000  loss 1.734  812 samples/s  eta 00:01:10  2/2 workers 2/2
// ps", without the rightmost parts that `width` has no room for. With `color` the state is coloured
// (which takes no width).
std::string ProgressLine(const v1::Job& job, int width, bool color = false);

std::string JobTable(absl::Span<const v1::Job> jobs, absl::Time now);
// With priority, labels, and why a job waits.
std::string WideJobTable(absl::Span<const v1::Job> jobs, absl::Time now);
// "team=vision,tier=1", by key; "-" for none.
std::string LabelText(const v1::Job& job);
// Orders jobs by a column of the table ("age", "name", "state", "step", "loss", "priority", ...; a
// minus before it turns the order round). INVALID_ARGUMENT lists the columns.
absl::Status SortJobs(const std::string& column, std::vector<v1::Job>& jobs);
std::string MemberTable(absl::Span<const v1::Member> members, absl::Time now);
// Who was started with --insecure, and what that means; "" if nobody was.
std::string InsecureNotice(const v1::ListMembersResponse& fleet);
std::string CheckpointTable(absl::Span<const v1::Checkpoint> checkpoints, absl::Time now);

// "2026-11-21 12:53:15 UTC  RUNNING  STARTED  2 workers, 2 ps"
std::string EventLine(const v1::JobEvent& event);

// Everything about one job: state, progress, members, spec, events.
std::string DescribeJob(const v1::Job& job, absl::Span<const v1::JobEvent> events, absl::Time now);

// How a finished job went: state, losses, checkpoint.
std::string JobSummary(const v1::Job& job, const std::string& checkpoint);

// One line for each, "warning: ...".
std::string WarningLines(const std::vector<std::string>& warnings);

// Whether the job succeeded with a loss that is a number.
bool TrainedWell(const v1::Job& job);

}  // namespace muster::cli
