// The Unix socket at which programs attach to this worker: docs/loop_protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "lib/transport/core/file_descriptor.h"
#include "services/worker/program/program_protocol.h"

namespace muster {

// A connection. Numbers are not used again.
enum class ProgramId : int64_t { kNone = 0 };

// The job that the port serves. Its functions are called on the port's thread, one at a time. They
// must return at once, and may call Send() and End().
class ProgramHost {
 public:
  virtual ~ProgramHost() = default;

  // `program` got WELCOME. At most one program is attached at a time.
  virtual void Attached(ProgramId program) = 0;
  // Takes DATA, NEXT, GRADIENTS, EVALUATION or FAILED, the last one also of a process above 0. An
  // error ends the connection; Lost() follows.
  virtual absl::Status Received(ProgramId program, ProgramMessage message) = 0;
  // The connection has ended.
  virtual void Lost(ProgramId program) = 0;
};

// Listens on a socket and owns all connections, on a thread of its own. Bytes that are no message
// of the protocol end their connection and nothing else. Thread-safe.
class ProgramPort {
 public:
  static constexpr int kConnectionsMax = 80;

  // Creates the socket at `path`; replaces one that no process listens at. Creates its folder with
  // mode 0700 if it does not exist. Returns ALREADY_EXISTS if another process listens there, and
  // INVALID_ARGUMENT or FAILED_PRECONDITION if the path cannot be used.
  static absl::StatusOr<std::unique_ptr<ProgramPort>> Listen(const std::string& path);
  ~ProgramPort();  // ends all connections and removes the socket

  const std::string& path() const { return path_; }

  struct Job {
    std::string id;       // "mnist-3"
    std::string name;     // "mnist"
    std::string welcome;  // the body of WELCOME
    std::vector<FileDescriptor> memory;
  };
  // Accepts programs for `job` from now on. `host` must outlive the call of Retire(). Requires: no
  // job is served.
  void Serve(Job job, ProgramHost* host) ABSL_LOCKS_EXCLUDED(host_mu_, mu_);
  // Ends what Serve() began. No function of the host runs after this returns. The host must not
  // hold a lock that its functions take.
  void Retire() ABSL_LOCKS_EXCLUDED(host_mu_, mu_);

  // Sends a message; no-op if the connection has ended.
  void Send(ProgramId program, ProgramMessageKind kind, absl::string_view body)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Answers the program's present or next NEXT with END. The host hears of the program only its
  // Lost() from then on. No-op after the first call.
  void End(ProgramId program, absl::string_view reason, absl::string_view message)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State {
    kNew,       // has sent no HELLO
    kWaiting,   // for its job
    kAttached,  // to the host
    kFollower,  // a process with `process` > 0
    kEnded,     // after End()
    kClosing,   // nothing is read from it any more
  };
  struct Frame {
    std::string bytes;
    std::shared_ptr<const Job> files;  // its memory goes with the first byte; null: no files
  };
  struct Connection {
    FileDescriptor socket;
    // Tells when the process that connected has ended. Its children may hold the socket open. Empty
    // if the kernel knows no such descriptors.
    FileDescriptor process;
    State state = State::kNew;
    std::deque<Frame> out;
    size_t sent = 0;  // bytes of the first frame
    size_t out_bytes = 0;
    bool broken = false;        // cannot be written to
    bool wants_next = false;    // its NEXT is not answered
    bool wants_result = false;  // its EVALUATION is not answered
    std::string end;            // the body of END; "": not ended, or END was sent

    // Used only by the port's thread.
    std::string in;
    ProgramHello hello;
    std::string told;  // the last WAITING
  };

  ProgramPort(std::string path, FileDescriptor listener, FileDescriptor bell);
  void Run();
  void Accept();
  // Reads one piece. Returns whether there may be more.
  bool Read(ProgramId id);
  void ReadRest(ProgramId id);
  bool HasHungUp(ProgramId id) const;
  bool IsFollower(ProgramId id) ABSL_LOCKS_EXCLUDED(mu_);
  void ReadFrames(ProgramId id);
  absl::Status Take(ProgramId id, uint8_t kind, absl::string_view body);
  absl::Status TakeHello(ProgramId id, ProgramHello hello);
  absl::Status TakeAfterEnd(Connection& connection, const ProgramMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AttachWaiting() ABSL_LOCKS_EXCLUDED(host_mu_, mu_);
  void AttachOrTell(ProgramId id, Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(host_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(ProgramId id, absl::string_view reason, absl::string_view message)
      ABSL_LOCKS_EXCLUDED(mu_);
  void CloseEnded() ABSL_LOCKS_EXCLUDED(host_mu_, mu_);
  void Queue(Connection& connection, Frame frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake();

  const std::string path_;
  const FileDescriptor listener_;
  const FileDescriptor bell_;  // wakes the thread

  // Held while a function of the host runs. Taken before mu_ and before the locks of the host.
  absl::Mutex host_mu_;
  std::shared_ptr<const Job> job_ ABSL_GUARDED_BY(host_mu_);
  ProgramHost* host_ ABSL_GUARDED_BY(host_mu_) = nullptr;
  ProgramId attached_ ABSL_GUARDED_BY(host_mu_) = ProgramId::kNone;

  // The thread alone adds and removes connections, so it may look them up without mu_.
  absl::Mutex mu_;
  std::map<ProgramId, Connection> connections_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  int64_t last_id_ = 0;  // used by the thread
  bool accepts_ = true;  // used by the thread: there are descriptors left
  std::jthread thread_;  // last: it uses all of the above
};

// Returns muster-UID/MEMBER.sock below $XDG_RUNTIME_DIR, else below /tmp. Creates the folder.
// Returns FAILED_PRECONDITION if the folder belongs to another user, or others may write to it.
absl::StatusOr<std::string> DefaultProgramSocket(absl::string_view member);

}  // namespace muster
