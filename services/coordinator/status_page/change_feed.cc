#include "services/coordinator/status_page/change_feed.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"
#include "services/coordinator/status_page/status_json.h"

namespace muster {
namespace {

void AppendEvent(absl::string_view kind, absl::string_view json, std::string& text) {
  absl::StrAppend(&text, "event: ", kind, "\ndata: ", json, "\n\n");
}

// Returns a text that differs if a member came, left, or serves other jobs.
std::string MembersOf(StatusSource& source) {
  v1::ListMembersResponse members = source.ListMembers();
  for (v1::Member& member : *members.mutable_members()) member.clear_report_time();
  return members.SerializeAsString();
}

}  // namespace

void ChangeFeed::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

absl::StatusOr<std::shared_ptr<ChangeFeed::Stream>> ChangeFeed::Open() {
  {
    absl::MutexLock lock(&mu_);
    if (streams_ >= options_.streams_max) {
      return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                            options_.streams_max, " pages listen for changes, the limit")),
                        "TOO_MANY_CALLS");
    }
    ++streams_;
  }
  return std::shared_ptr<Stream>(new Stream(this));
}

ChangeFeed::Stream::Stream(ChangeFeed* feed)
    : feed_(feed),
      ends_(SteadyNow() + feed->options_.stream_life),
      job_changes_(feed->options_.source->WatchJobs()),
      members_(MembersOf(*feed->options_.source)) {}

ChangeFeed::Stream::~Stream() {
  absl::MutexLock lock(&feed_->mu_);
  --feed_->streams_;
}

std::optional<std::string> ChangeFeed::Stream::Next() {
  const Options& options = feed_->options_;
  const absl::Duration heartbeat = SteadyNow() + options.heartbeat;
  while (SteadyNow() < ends_) {
    {
      absl::MutexLock lock(&feed_->mu_);
      if (AwaitFor(&feed_->mu_, absl::Condition(&feed_->closed_), options.interval)) break;
    }
    if (std::string text = Look(); !text.empty()) return text;
    if (SteadyNow() >= heartbeat) return ":\n\n";
  }
  return std::nullopt;
}

std::string ChangeFeed::Stream::Look() {
  std::string text;
  while (const std::optional<v1::WatchJobsResponse> changes = job_changes_()) {
    for (const v1::Job& job : changes->jobs()) AppendEvent("job", ToJson(job), text);
    for (const std::string& name : changes->removed()) {
      AppendEvent("deleted", absl::StrCat("{\"name\":", Quoted(name), "}"), text);
    }
  }
  std::string members = MembersOf(*feed_->options_.source);
  if (members != members_) AppendEvent("members", "{}", text);
  members_ = std::move(members);
  return text;
}

}  // namespace muster
