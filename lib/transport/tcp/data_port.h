// The one TCP port of a process on which its transports are reached, and its guard.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "lib/transport/core/doorbell.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {

enum class Checksums {
  // Of payloads that leave this host. Its memory is trusted; cards and switches are known to change
  // bits, and TCP's own sum of 16 bits misses some of that. Not of encrypted ones, which cannot
  // change unnoticed.
  kAuto,
  kOn,
  kOff,  // unless the other end wants them
};

struct DataPortOptions {
  // A name or an address of this host: connections come in there only. "": at all of them.
  std::string bind_host;
  // The first free one of this range; 0: any that the kernel gives.
  uint16_t port_first = 0;
  uint16_t port_last = 0;
  // A name or an address under which others reach this host. "": its own addresses.
  std::string advertise_host;
  DataSecurity security = DataSecurity::kAuth;
  Checksums checksums = Checksums::kAuto;

  // Hears of everybody who is turned away, by NameOf(Stranger): on the port's thread.
  std::function<void(absl::string_view why)> turned_away;

  // Hears of every frame or encrypted record of a member that was changed on its way, which has
  // cost the link: on the thread of any transport.
  std::function<void()> damaged_frame;

  // The name service: asked on a thread of its own, for one name at a time.
  std::function<absl::StatusOr<std::vector<SocketAddress>>(const std::string& host, uint16_t port)>
      resolve = SocketAddress::Resolve;

  // How long a stranger may take to become a member.
  std::chrono::milliseconds handshake_time_max = std::chrono::seconds(5);
};

// Listens, and lets in who proves to be of a session that is open behind one of the doors: one
// thread for all handshakes, which hands each proven connection to the transport that it asks for.
//
// Of half-open connections there are at most kHalfOpenMax. Where one more wants in, one of the
// address that has most has to go, the oldest that has not named an open session or else the
// oldest, once it has had half a second; until then the newcomer waits in the kernel's queue. So
// members who all come at once are let in one after another, and whoever sits still keeps those at
// other addresses out for half a second once, and for a twentieth of one as long as he goes on.
//
// Thread-safe.
class DataPort : public std::enable_shared_from_this<DataPort> {
 public:
  static constexpr int kHalfOpenMax = 128;

  // Why somebody was turned away. A member checks the challenge before it proves anything, and
  // hangs up where that is not made with its token.
  enum class Stranger {
    kNotMuster,  // what it said is no hello
    kDiffers,    // another version or security
    kNotProven,  // a wrong proof, or none after it had named no session that is open here
    kHungUp,     // before it had finished, as a member with another token does
    kTooSlow,
    kCrowdedOut,  // by newer ones
  };
  static constexpr int kStrangerKinds = 6;
  static absl::string_view NameOf(Stranger why);  // "not_muster", ...: for metrics

  // A connection that has been let in.
  struct Member {
    FileDescriptor socket;
    LinkHello hello;
    SessionToken token;  // of the session, as it was then
    bool checksums = false;
    SessionToken::Proof tls_key = {};
  };

  // What became of a name.
  struct Resolved {
    int64_t request;
    absl::StatusOr<std::vector<SocketAddress>> addresses;
  };

  // A transport behind the port. Of one thread, but HasNews().
  class Door {
   public:
    // Nobody comes in any more, and `wake` is not called any more.
    ~Door();
    Door(const Door&) = delete;
    Door& operator=(const Door&) = delete;

    DataPort& port() const { return *port_; }
    uint32_t number() const { return number_; }
    void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token);
    void CloseSession(uint64_t job, uint32_t generation);
    // Whether that session is open, and with this token.
    bool IsOpen(uint64_t job, uint32_t generation, const SessionToken& token) const;

    // The answer comes as news. The name service may take long, and other names wait meanwhile.
    void Resolve(int64_t request, const Endpoint& endpoint);
    // Nobody waits for the answer any more, which may come all the same.
    void CancelResolve(int64_t request);

    // Any thread; no lock.
    bool HasNews() const { return has_news_.load(std::memory_order_acquire); }
    struct News {
      std::vector<Member> members;
      std::vector<Resolved> resolved;
    };
    News Take();

   private:
    friend class DataPort;
    Door(std::shared_ptr<DataPort> port, uint32_t number, absl::AnyInvocable<void()> wake)
        : port_(std::move(port)), number_(number), wake_(std::move(wake)) {}
    // Both with the port's lock held.
    void Announce();
    // Of the session that it names: null, where it is not let in.
    const SessionToken* TokenFor(const LinkHello& hello) const;

    const std::shared_ptr<DataPort> port_;
    const uint32_t number_;
    absl::AnyInvocable<void()> wake_;
    std::atomic<bool> has_news_ = false;
    SessionTable sessions_;  // guarded by port_->mu_, as is news_
    News news_;
  };

  // UNAVAILABLE, with what to try, where no port of the range can be had, or where others could not
  // find it: it has no endpoints().
  static absl::StatusOr<std::shared_ptr<DataPort>> Open(DataPortOptions options = {});
  // Waits for a name that is being resolved.
  ~DataPort();
  DataPort(const DataPort&) = delete;
  DataPort& operator=(const DataPort&) = delete;

  // `wake` is called when there is news, on another thread and with a lock held: it only wakes.
  std::unique_ptr<Door> MakeDoor(absl::AnyInvocable<void()> wake);

  const DataPortOptions& options() const { return options_; }
  uint64_t id() const { return id_; }  // at random: tells this port from those of other processes
  uint16_t port() const { return port_; }
  // Where others may try to reach it, the most likely first; 1 to 8.
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }
  // What endpoints() are of a port that listens at `bound` on a host with these addresses.
  static absl::StatusOr<std::vector<Endpoint>> EndpointsOf(const DataPortOptions& options,
                                                           const SocketAddress& bound,
                                                           std::vector<std::string> own_hosts);
  // Whether checksums are wanted on this connection.
  bool WantsChecksums(int socket) const;

  int64_t strangers(Stranger why) const { return strangers_[static_cast<int>(why)].load(); }
  int64_t strangers() const;  // of all kinds
  int64_t members() const { return members_.load(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct HalfOpen;

  DataPort(DataPortOptions options, FileDescriptor listener, std::vector<Endpoint> endpoints,
           Doorbell bell);

  void Run();
  void Accept();
  size_t NextToGo() const;
  Clock::time_point UndisturbedUntil(const HalfOpen& half, Clock::time_point now) const;
  bool IsCrowded(Clock::time_point now) const;
  void CrowdOut(size_t place, Clock::time_point now);
  void GiveUpLate(Clock::time_point now);
  // Whether it is to be kept.
  bool Continue(HalfOpen& half);
  bool Reply(HalfOpen& half);
  void HandOver(HalfOpen& half);
  Door* FindDoor(const LinkHello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountHangUp(const HalfOpen& half);
  void Count(Stranger why, const HalfOpen& half, const absl::Status& fault);
  void ResolveNames();

  const DataPortOptions options_;
  const uint64_t id_;
  const FileDescriptor listener_;
  const Doorbell bell_;
  const uint16_t port_;
  const std::vector<Endpoint> endpoints_;

  std::array<std::atomic<int64_t>, kStrangerKinds> strangers_ = {};
  std::atomic<int64_t> members_ = 0;

  absl::Mutex mu_;
  absl::flat_hash_map<uint32_t, Door*> doors_ ABSL_GUARDED_BY(mu_);
  uint32_t doors_made_ ABSL_GUARDED_BY(mu_) = 0;
  struct Request {
    uint32_t door;
    int64_t number;
    Endpoint endpoint;
  };
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::thread resolver_ ABSL_GUARDED_BY(mu_);  // started for the first name
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Of the thread.
  std::vector<std::unique_ptr<HalfOpen>> halves_;  // the oldest first
  // Of whom a stranger was crowded out, by address, and until when strangers there have less time.
  absl::flat_hash_map<std::string, Clock::time_point> idlers_;
  Clock::time_point accept_from_;
  Clock::time_point log_from_;
  int64_t unlogged_ = 0;
  std::thread thread_;
};

}  // namespace muster
