#include "services/coordinator/status_page/change_feed.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"
#include "services/coordinator/status_page/status_json.h"

namespace muster {
namespace {

constexpr int kNewestLookedAt = 50;
constexpr int kPageSize = 500;

bool HasEnded(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

std::string Event(absl::string_view kind, absl::string_view json) {
  return absl::StrCat("event: ", kind, "\ndata: ", json, "\n\n");
}

}  // namespace

ChangeFeed::ChangeFeed(Options options) : options_(options) {
  thread_ = std::thread([this] { Run(); });
}

ChangeFeed::~ChangeFeed() {
  Close();
  thread_.join();
}

void ChangeFeed::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

absl::StatusOr<std::shared_ptr<ChangeFeed::Stream>> ChangeFeed::Open() {
  std::shared_ptr<Stream> stream(new Stream(this));
  stream->ends_ = SteadyNow() + options_.stream_life;
  absl::MutexLock lock(&mu_);
  if (std::ssize(streams_) >= options_.streams_max) {
    stream->dropped_ = true;
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          options_.streams_max, " pages listen for changes, the limit")),
                      "TOO_MANY_CALLS");
  }
  streams_.push_back(stream.get());
  auto begun = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return follows_ || closed_; };
  mu_.Await(absl::Condition(&begun));
  return stream;
}

ChangeFeed::Stream::~Stream() {
  absl::MutexLock lock(&feed_->mu_);
  std::erase(feed_->streams_, this);
}

std::optional<std::string> ChangeFeed::Stream::Next() {
  const absl::Duration left = ends_ - SteadyNow();
  if (left <= absl::ZeroDuration()) return std::nullopt;
  absl::MutexLock lock(&feed_->mu_);
  auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed_->mu_) {
    return feed_->closed_ || dropped_ || !queue_.empty();
  };
  if (!AwaitFor(&feed_->mu_, absl::Condition(&ready), std::min(left, feed_->options_.heartbeat))) {
    return ":\n\n";
  }
  if (feed_->closed_ || dropped_) return std::nullopt;
  std::string text;
  for (; !queue_.empty(); queue_.pop_front()) text += *queue_.front();
  return text;
}

void ChangeFeed::Run() {
  for (;;) {
    bool first = false;
    {
      absl::MutexLock lock(&mu_);
      auto wanted = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || !streams_.empty(); };
      if (!wanted()) follows_ = false;
      mu_.Await(absl::Condition(&wanted));
      if (closed_) return;
      first = !follows_;
    }
    Tell(Look(first));
    absl::MutexLock lock(&mu_);
    follows_ = true;
    if (AwaitFor(&mu_, absl::Condition(&closed_), options_.interval)) return;
  }
}

std::vector<std::string> ChangeFeed::Look(bool first) {
  std::vector<std::string> news;
  LookAtJobs(first, news);
  LookAtMembers(first, news);
  return news;
}

void ChangeFeed::LookAtJobs(bool first, std::vector<std::string>& news) {
  std::map<std::string, Seen> now;
  auto take = [&](const v1::Job& job) {
    Seen seen{job.revision(), job.progress().step(), job.message(), HasEnded(job.state())};
    const auto before = jobs_.find(job.name());
    if (!first && (before == jobs_.end() || before->second != seen)) {
      news.push_back(Event("job", ToJson(job)));
    }
    now.emplace(job.name(), std::move(seen));
  };
  v1::ListJobsRequest request;
  request.set_view(v1::JOB_VIEW_BASIC);
  request.set_page_size(kNewestLookedAt);
  if (const auto newest = source()->ListJobs(request); newest.ok()) {
    for (const v1::Job& job : newest->jobs()) take(job);
  }
  request.set_page_size(kPageSize);
  for (const v1::JobState state :
       {v1::QUEUED, v1::PREPARING, v1::RUNNING, v1::RECOVERING, v1::SUSPENDED}) {
    request.add_states(state);
  }
  for (bool more = true; more;) {
    const auto going_on = source()->ListJobs(request);
    if (!going_on.ok()) break;
    for (const v1::Job& job : going_on->jobs()) {
      if (!now.contains(job.name())) take(job);
    }
    request.set_page_token(going_on->next_page_token());
    more = !going_on->next_page_token().empty();
  }
  // A job that was listed and is not any more has ended or was deleted. A job that had ended before
  // and still exists is no longer among the newest.
  for (const auto& [name, before] : jobs_) {
    if (now.contains(name)) continue;
    const auto job = source()->GetJob(name);
    if (job.ok()) {
      if (!before.ended) take(*job);
    } else if (absl::IsNotFound(job.status())) {
      news.push_back(Event("deleted", absl::StrCat("{\"name\":", Quoted(name), "}")));
    }
  }
  jobs_ = std::move(now);
}

void ChangeFeed::LookAtMembers(bool first, std::vector<std::string>& news) {
  v1::ListMembersResponse members = source()->ListMembers();
  for (v1::Member& member : *members.mutable_members()) member.clear_report_time();
  std::string text = members.SerializeAsString();
  if (!first && text != members_) news.push_back(Event("members", "{}"));
  members_ = std::move(text);
}

void ChangeFeed::Tell(const std::vector<std::string>& news) {
  if (news.empty()) return;
  const auto text = std::make_shared<const std::string>(absl::StrJoin(news, ""));
  absl::MutexLock lock(&mu_);
  for (Stream* stream : streams_) {
    if (std::ssize(stream->queue_) >= options_.messages_queued_max) {
      stream->dropped_ = true;
      stream->queue_.clear();
    } else if (!stream->dropped_) {
      stream->queue_.push_back(text);
    }
  }
}

}  // namespace muster
