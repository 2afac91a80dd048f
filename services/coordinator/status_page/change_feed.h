// Tells browsers what changes, as it changes: the text of server-sent events.
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

// Thread-safe. A thread of its own looks at the source once per interval, while somebody listens,
// and tells all streams what is new since the look before:
//
//   event: job        data: the job, as in /api/v1/jobs?view=basic
//   event: deleted    data: {"name":"jobs/ID"}
//   event: members    data: {}                      somebody came or went, or serves other jobs
//
// Of jobs it follows those that have not ended, and the newest.
class ChangeFeed {
 public:
  struct Options {
    StatusSource* source;  // outlives the feed
    absl::Duration interval = absl::Seconds(1);
    int streams_max = 16;
    int messages_queued_max = 1024;  // of a stream: a slower reader is hung up on
    // A stream then ends, so that whoever listens proves anew who it is; browsers come again.
    absl::Duration stream_life = absl::Minutes(5);
    absl::Duration heartbeat = absl::Seconds(15);
  };
  explicit ChangeFeed(Options options);
  ~ChangeFeed();  // ends all streams, which must be gone before the feed is

  class Stream {
   public:
    ~Stream();
    // What is to be written next: waits for it, no longer than a heartbeat, which is a comment.
    // nullopt: the stream is over.
    std::optional<std::string> Next();

   private:
    friend class ChangeFeed;
    explicit Stream(ChangeFeed* feed) : feed_(feed) {}

    ChangeFeed* const feed_;
    absl::Duration ends_;                                   // of SteadyNow(); the reader's
    std::deque<std::shared_ptr<const std::string>> queue_;  // guarded by the feed's mutex
    bool dropped_ = false;                                  // likewise
  };
  // What changes after this has returned is told. RESOURCE_EXHAUSTED (reason "TOO_MANY_CALLS"):
  // there are as many as there may be.
  absl::StatusOr<std::shared_ptr<Stream>> Open() ABSL_LOCKS_EXCLUDED(mu_);

  // From now on all streams are over, and no new one begins.
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
  // What is new since the last look, as events. The first look has nothing to compare with.
  std::vector<std::string> Look(bool first);
  void LookAtJobs(bool first, std::vector<std::string>& news);
  void LookAtMembers(bool first, std::vector<std::string>& news);
  void Tell(const std::vector<std::string>& news) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  std::map<std::string, Seen> jobs_;  // the thread's, by name
  std::string members_;               // likewise
  mutable absl::Mutex mu_;
  std::vector<Stream*> streams_ ABSL_GUARDED_BY(mu_);
  bool follows_ ABSL_GUARDED_BY(mu_) = false;  // it has looked, for those who listen now
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
