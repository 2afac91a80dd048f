// Sends changes to browsers as they happen, as server-sent events.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/status_page/status_source.h"

namespace muster {

// A thread polls the source once per interval while there is a stream, and sends all streams the
// changes since the last poll:
//
//   event: job        data: the job, as in /api/v1/jobs?view=basic.
//   event: deleted    data: {"name":"jobs/ID"}.
//   event: members    data: {}. A member came, left, or serves other jobs.
//
// Follows the jobs that have not ended, and the newest jobs. Thread-safe.
class ChangeFeed {
 public:
  struct Options {
    StatusSource* source;  // must outlive the feed
    absl::Duration interval = absl::Seconds(1);
    int streams_max = 16;
    // Limit of the messages queued for one stream. A reader that falls behind further is
    // disconnected.
    int messages_queued_max = 1024;
    // Limits the life of a stream, so that its reader authenticates again. Browsers reconnect.
    absl::Duration stream_life = absl::Minutes(5);
    absl::Duration heartbeat = absl::Seconds(15);
  };
  explicit ChangeFeed(Options options);
  // Requires: all streams are deleted.
  ~ChangeFeed();

  class Stream {
   public:
    ~Stream();
    // Blocks for up to a heartbeat. Returns the next text to send; a heartbeat is a comment.
    // Returns nullopt if the stream has ended.
    std::optional<std::string> Next();

   private:
    friend class ChangeFeed;
    explicit Stream(ChangeFeed* feed) : feed_(feed) {}

    ChangeFeed* const feed_;
    absl::Duration ends_;  // on SteadyNow()'s clock; used by the reader
    std::deque<std::shared_ptr<const std::string>> queue_;  // guarded by the feed's mutex
    bool dropped_ = false;                                  // guarded by the feed's mutex
  };
  // Opens a stream that gets every change after this call. If there was none, blocks until the
  // source was polled. Returns RESOURCE_EXHAUSTED (reason "TOO_MANY_CALLS") if `streams_max` are
  // open.
  absl::StatusOr<std::shared_ptr<Stream>> Open() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all streams. A stream that is opened later ends at once.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Seen {
    uint64_t revision = 0;
    int64_t step = 0;
    std::string message;
    bool ended = false;
    friend bool operator==(const Seen& a, const Seen& b) {
      return a.revision == b.revision && a.step == b.step && a.message == b.message &&
             a.ended == b.ended;
    }
  };
  StatusSource* source() const { return options_.source; }
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Polls the source. Returns the changes since the last poll as events. The first poll has nothing
  // to compare with.
  std::vector<std::string> Look(bool first);
  void LookAtJobs(bool first, std::vector<std::string>& news);
  void LookAtMembers(bool first, std::vector<std::string>& news);
  void Tell(const std::vector<std::string>& news) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  std::map<std::string, Seen> jobs_;  // by name; used by the thread only
  std::string members_;               // used by the thread only
  mutable absl::Mutex mu_;
  std::vector<Stream*> streams_ ABSL_GUARDED_BY(mu_);
  bool follows_ ABSL_GUARDED_BY(mu_) = false;  // the first poll for the present streams is done
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace muster
