// Sends changes to browsers as they happen, as server-sent events.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/status_page/status_source.h"

namespace muster {

// Each stream asks the source once per interval, on its reader's thread, and sends what changed:
//
//   event: job        data: the job, as in /api/v1/jobs?view=basic.
//   event: deleted    data: {"name":"jobs/ID"}.
//   event: members    data: {}. A member came, left, or serves other jobs.
//
// Thread-safe.
class ChangeFeed {
 public:
  struct Options {
    StatusSource* source;  // must outlive the feed
    absl::Duration interval = absl::Seconds(1);
    int streams_max = 16;
    // Limits the life of a stream, so that its reader authenticates again. Browsers reconnect.
    absl::Duration stream_life = absl::Minutes(5);
    absl::Duration heartbeat = absl::Seconds(15);
  };
  explicit ChangeFeed(const Options& options) : options_(options) {}

  class Stream {
   public:
    ~Stream();
    // Blocks for up to a heartbeat. Returns the next text to send; a heartbeat is a comment.
    // Returns nullopt if the stream has ended.
    std::optional<std::string> Next();

   private:
    friend class ChangeFeed;
    explicit Stream(ChangeFeed* feed);
    // Returns the changes since the last call as events.
    std::string Look();

    ChangeFeed* const feed_;
    const absl::Duration ends_;  // on SteadyNow()'s clock
    const StatusSource::JobChanges job_changes_;
    std::string members_;  // as the last call of Look() saw them
  };
  // Opens a stream that gets every change after this call. The feed must outlive it. Returns
  // RESOURCE_EXHAUSTED (reason "TOO_MANY_CALLS") if `streams_max` are open.
  absl::StatusOr<std::shared_ptr<Stream>> Open() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all streams. A stream that is opened later ends at once.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const Options options_;
  absl::Mutex mu_;
  int streams_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
