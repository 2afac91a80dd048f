// The TCP port of a process at which peers reach its transports, and the check of connecting peers.
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
  // Checksums for payloads that leave this host. Its memory is trusted, but network cards and
  // switches are known to change bits, and TCP's 16-bit checksum misses some of that. Encrypted
  // payloads need none, because a change is always detected.
  kAuto,
  kOn,
  kOff,  // unless the other end wants them
};

struct DataPortOptions {
  // A name or an address of this host: the port listens only there. "": at all its addresses.
  std::string bind_host;
  // The first free port of this range. 0: any port that the kernel assigns.
  uint16_t port_first = 0;
  uint16_t port_last = 0;
  // A name or an address at which other hosts reach this one. "": the address of bind_host, or all
  // of this host's addresses if the port listens at all of them.
  std::string advertise_host;
  DataSecurity security = DataSecurity::kAuth;
  Checksums checksums = Checksums::kAuto;

  // Called for every refused peer with NameOf() of its UnauthenticatedPeer, on the port's thread.
  std::function<void(absl::string_view why)> turned_away;

  // Called for every frame or encrypted record that was changed in transit, which ends the link.
  // Called on the thread of any transport.
  std::function<void()> damaged_frame;

  // The name service. Called on a separate thread, for one name at a time.
  std::function<absl::StatusOr<std::vector<SocketAddress>>(const std::string& host, uint16_t port)>
      resolve = SocketAddress::Resolve;

  // The time that an unauthenticated peer has to prove its identity.
  std::chrono::milliseconds handshake_time_max = std::chrono::seconds(5);
};

// Listens, and accepts peers that prove to belong to an open session of a listener. One thread does
// all handshakes, and hands each proven connection to the transport that it names.
//
// There are at most kHalfOpenMax half-open connections. If one more arrives, one must go, after it
// had half a second. It is chosen from the address that has the most: the oldest that has named no
// open session, or else the oldest. Until then the new connection waits in the kernel's queue.
//
// So members that all connect at once are accepted one after another. Idle connections keep peers
// at other addresses out for half a second once, and then for 50 ms each time.
//
// Thread-safe.
class DataPort : public std::enable_shared_from_this<DataPort> {
 public:
  static constexpr int kHalfOpenMax = 128;

  // The reason for refusing a peer. A member checks the challenge before it proves anything, and
  // hangs up if the challenge was not made with its token.
  enum class UnauthenticatedPeer {
    kNotMuster,  // its bytes are no hello
    kDiffers,    // another version or security
    kNotProven,  // a wrong proof, or no proof after naming a session that is not open here
    kHungUp,     // before the handshake ended, as a member with another token does
    kTooSlow,
    kCrowdedOut,  // pushed out by newer connections
  };
  static constexpr int kUnauthenticatedPeerKinds = 6;
  static absl::string_view NameOf(UnauthenticatedPeer why);  // "not_muster", ...: for metrics

  // A connection that has been accepted.
  struct Member {
    FileDescriptor socket;
    LinkHello hello;
    SessionToken token;  // of the session, as it was then
    bool checksums = false;
    SessionToken::Proof tls_key = {};
  };

  // The result of resolving a name.
  struct Resolved {
    int64_t request;
    absl::StatusOr<std::vector<SocketAddress>> addresses;
  };

  // Registers one transport with the port: holds its open sessions and receives its accepted
  // connections and resolved names. Called on the transport's thread, except HasNews(), which is
  // thread-safe.
  class Listener {
   public:
    // Accepts no more connections for this transport. `wake` is not called again.
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    DataPort& port() const { return *port_; }
    uint32_t number() const { return number_; }
    void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token);
    void CloseSession(uint64_t job, uint32_t generation);
    // Whether that session is open with this token.
    bool IsOpen(uint64_t job, uint32_t generation, const SessionToken& token) const;

    // Starts to resolve a name. The result arrives as news. The name service may be slow, and other
    // names wait for it.
    void Resolve(int64_t request, const Endpoint& endpoint);
    // Cancels a request. Its result may still arrive.
    void CancelResolve(int64_t request);

    // Thread-safe; takes no lock.
    bool HasNews() const { return has_news_.load(std::memory_order_acquire); }
    struct News {
      std::vector<Member> members;
      std::vector<Resolved> resolved;
    };
    News Take();

   private:
    friend class DataPort;
    Listener(std::shared_ptr<DataPort> port, uint32_t number, absl::AnyInvocable<void()> wake)
        : port_(std::move(port)), number_(number), wake_(std::move(wake)) {}
    // Both are called with the port's lock held.
    void Announce();
    // Returns the token of the session that the hello names; null if the peer must be refused.
    const SessionToken* TokenFor(const LinkHello& hello) const;

    const std::shared_ptr<DataPort> port_;
    const uint32_t number_;
    absl::AnyInvocable<void()> wake_;
    std::atomic<bool> has_news_ = false;
    SessionTable sessions_;  // guarded by port_->mu_, like news_
    News news_;
  };

  // Opens a port. Returns UNAVAILABLE if no port of the range is free, or if the port would have no
  // endpoints() at which other hosts find it. Returns RESOURCE_EXHAUSTED if there is no descriptor
  // for its bell.
  static absl::StatusOr<std::shared_ptr<DataPort>> Open(DataPortOptions options = {});
  // Blocks until a name that is being resolved has been answered.
  ~DataPort();
  DataPort(const DataPort&) = delete;
  DataPort& operator=(const DataPort&) = delete;

  // `wake` is called when there is news, on another thread and with a lock held: it must only wake
  // a thread.
  std::unique_ptr<Listener> MakeListener(absl::AnyInvocable<void()> wake);

  const DataPortOptions& options() const { return options_; }
  // Random: distinguishes this port from those of other processes.
  uint64_t id() const { return id_; }
  uint16_t port() const { return port_; }
  // The addresses at which others may reach the port, the most likely first; 1 to 8.
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }
  // Returns the endpoints() of a port that listens at `bound` on a host with these addresses.
  // Returns UNAVAILABLE if there are none.
  static absl::StatusOr<std::vector<Endpoint>> EndpointsOf(const DataPortOptions& options,
                                                           const SocketAddress& bound,
                                                           std::vector<std::string> own_hosts);
  // Whether this end wants checksums on the connection.
  bool WantsChecksums(int socket) const;

  int64_t unauthenticated_peers(UnauthenticatedPeer why) const {
    return unauthenticated_peers_[static_cast<int>(why)].load();
  }
  int64_t unauthenticated_peers() const;  // the total of all kinds
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
  // Continues the handshake as far as possible now. Returns whether to keep the connection.
  bool Continue(HalfOpen& half);
  bool Reply(HalfOpen& half);
  void HandOver(HalfOpen& half);
  Listener* FindListener(const LinkHello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountHangUp(const HalfOpen& half);
  void Count(UnauthenticatedPeer why, const HalfOpen& half, const absl::Status& fault);
  void ResolveNames();

  const DataPortOptions options_;
  const uint64_t id_;
  const FileDescriptor listener_;
  const Doorbell bell_;
  const uint16_t port_;
  const std::vector<Endpoint> endpoints_;

  std::array<std::atomic<int64_t>, kUnauthenticatedPeerKinds> unauthenticated_peers_ = {};
  std::atomic<int64_t> members_ = 0;

  absl::Mutex mu_;
  absl::flat_hash_map<uint32_t, Listener*> listeners_ ABSL_GUARDED_BY(mu_);
  uint32_t listeners_made_ ABSL_GUARDED_BY(mu_) = 0;
  struct Request {
    uint32_t listener;
    int64_t number;
    Endpoint endpoint;
  };
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::thread resolver_ ABSL_GUARDED_BY(mu_);  // started when the first name is to be resolved
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Used only by the port's thread.
  std::vector<std::unique_ptr<HalfOpen>> halves_;  // oldest first
  // Addresses of peers that were crowded out before they named an open session. Until the given
  // time, other such peers there have only kIdlersTime.
  absl::flat_hash_map<std::string, Clock::time_point> idlers_;
  Clock::time_point accept_from_;
  Clock::time_point log_from_;
  int64_t unlogged_ = 0;
  std::thread thread_;
};

}  // namespace muster
