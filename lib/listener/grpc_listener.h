// A port for unauthenticated peers. It accepts connections and forwards their bytes, no faster than
// the gRPC server behind it can handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/listener/call_credit.h"
#include "lib/listener/call_stamp.h"
#include "lib/security/tls_connection.h"
#include "lib/security/tls_folder.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// gRPC 1.51 has no limit for these:
// - calls that a client has abandoned and the server has not cleared away.
// - calls of a client that acknowledges no settings.
// - answers that the client does not read.
// - connections.
//
// Behind this listener, each connection is limited by its CallCredit, and all together have
// `calls_max` calls. A client that does not read is not read either.
//
// The listener is also the server's end of TLS, because it must see the frames that it counts. It
// can stamp every call with the identity of its client, if known, and with the client's address,
// because gRPC behind the listener knows no client.
//
// One thread forwards the bytes of all connections. It keeps at most about one piece of each
// direction, while the other side takes no more or a call waits for credit. Not thread-safe.
class GrpcListener {
 public:
  struct Options {
    CallCredit::Limits credit = {.first = limits::kCallsOfNewConnectionMax,
                                 .most = limits::kStreamsOfConnectionMax + limits::kShardThreadsMax,
                                 .per_second = limits::kCallsOfConnectionPerSecond};
    // A connection may have kCallsAlways calls beyond this limit. Calls of clients with a
    // certificate, except submitters', do not count.
    int calls_max = limits::kCallsOpenMax;
    // How many calls per second, over all connections, give their credit back when they end. Unused
    // ones are saved, at most those of kSaved.
    double returns_per_second = limits::kCallsEndedPerSecond;
    int connections_max = limits::kConnectionsMax;
    // The limit of connections without a client certificate or with a submitter's, with TLS. At
    // most a fifth of connections_max. The oldest of them is closed for a new one, so that members
    // always find room.
    int unknown_max = limits::kConnectionsMax - limits::kAttachedMembersMax;
    // The share of the places (of unknown_max with TLS, else of all) that one address may have. An
    // IPv6 network of 64 bits counts as one address. The address's idlest connection is closed for
    // its next one. With TLS, connections in the handshake count, and those that have shown a
    // certificate, except a submitter's, do not.
    double address_share = 0.8;
    // The limit of connections accepted per second. If more arrive, their addresses share it.
    double connections_per_second = limits::kConnectionsPerSecond;
    // If the process uses more memory than this, only connections that have not recently begun many
    // calls may begin calls. The connections with the most memory for messages in progress are
    // closed.
    int64_t resident_bytes_max = limits::kResidentBytesMax;
    std::function<int64_t()> resident_bytes = ResidentBytes;  // called often, so it must be cheap
    int64_t spared_bytes = 2 * limits::kRequestBytesMax;  // a connection with less is not closed
    // While it returns true, only connections that have not recently begun many calls may begin
    // calls, as with resident_bytes_max. A call that ends then gives no credit back at once. Called
    // often. Null: never crowded.
    std::function<bool()> crowded = nullptr;
    absl::Duration greeting_max = limits::kFirstMessageMax;  // includes the handshake
    TlsServer* tls = nullptr;  // null: connections are not encrypted; must outlive the listener
    // The header field for the stamp of calls; "" for none. `stamp` makes its value from the
    // client's certificate, if it has shown one, and its address.
    std::string stamp_field = "";
    std::function<std::string(const std::optional<Identity>&, absl::string_view)> stamp = nullptr;
  };
  static constexpr int kCallsAlways = 4;
  // The resident memory of this process.
  static int64_t ResidentBytes();
  static constexpr absl::Duration kSaved = absl::Seconds(4);

  // Listens at host:port. 0.0.0.0 and [::] mean all addresses of this host; port 0 means a free
  // one. Returns UNAVAILABLE if the address cannot be used, INVALID_ARGUMENT if it is no host:port,
  // and RESOURCE_EXHAUSTED if there is no descriptor left.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Listen(const std::string& host_port,
                                                              const Options& options);
  // Closes all connections.
  ~GrpcListener();

  int port() const { return port_; }

  // Starts to accept connections. Call it once. `serve` is called on the listener's thread with the
  // server's end of each connection: a nonblocking stream socket, which the server owns from then
  // on.
  void Open(std::function<void(int socket)> serve);
  // Stops accepting connections; open ones stay. `serve` is not called after this has returned.
  void StopAccepting();

 private:
  // Bytes of one direction that could not be forwarded yet.
  struct Way {
    std::string held;
    size_t passed = 0;  // bytes that wait only for the other side
  };
  struct Connection {
    FileDescriptor client, server;  // no server during the handshake
    std::string address;            // of the client
    std::string from;               // the address, or its IPv6 network
    std::string source;             // the source that it counts for; "" if it does not count
    std::unique_ptr<TlsConnection> tls;
    bool handshaking = false;
    bool known = false;                                    // by a certificate, except a submitter's
    absl::Time certificate_ends = absl::InfiniteFuture();  // of the client, if it has shown one
    std::unique_ptr<CallStamp> stamp;
    CallCredit credit;
    absl::Duration opened;
    absl::Duration active;  // the last time that something happened
    Way up = {}, down = {};
    uint32_t client_events = 0, server_events = 0;  // the events that are watched
    bool server_gone = false;                       // its last bytes are still forwarded
  };
  using Connections = absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>>;
  struct Ways {
    bool up = false, down = false;
  };
  enum class Fate { kStays, kEnds };
  enum class State { kAccepting, kStaying, kClosed };

  GrpcListener(const Options& options, std::vector<FileDescriptor> listeners, FileDescriptor events,
               FileDescriptor waker);

  void Wake();  // wakes the listener's thread

  // All of these run on the listener's thread.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Accept();
  bool may_accept() const;
  bool HasTurn(const std::string& source);
  bool MayTell();  // about unauthenticated peers, in the log
  // Closes the idlest connection without calls, of this source or of all. Returns false if there is
  // none.
  bool MakeRoom(absl::string_view source = "");
  bool MakeRoomForSource(const std::string& source);
  // Call if all connections have calls. If connections without a certificate occupy all places that
  // are theirs, closes the oldest of these. Otherwise takes the address with the most connections,
  // if it has more than a quarter of all places and is not `newcomer`, and closes its idlest one.
  // Returns false if it closed none.
  bool MakeRoomOfLargest(absl::string_view newcomer);
  void Admit(FileDescriptor client, std::string source);
  void Uncount(Connection& connection);
  void Handshake(uint64_t number, Connection& connection);
  bool Serve(uint64_t number, Connection& connection, const std::optional<Identity>& client);
  void MakeRoomAmongUnknown();
  void HandleEvent(uint64_t number, bool server_side, uint32_t events);
  void PassOn(uint64_t number, Connection& connection, Ways ways);
  Fate PassUp(Connection& connection);
  Fate PassDown(Connection& connection);
  template <typename Read, typename Write, typename Judge>
  Fate Pass(Way& way, CallStamp* stamp, Read read, Write write, Judge judge);
  void Watch(uint64_t number, Connection& connection);
  void Close(uint64_t number);
  void LookAtClock();
  void LookAtMemory();
  void HangUpOnLargest(int64_t bytes);
  void WatchListeners(bool on);

  const Options options_;
  std::function<void(int)> serve_;
  const std::vector<FileDescriptor> listeners_;
  const FileDescriptor events_;
  const FileDescriptor waker_;  // an eventfd
  const int port_;
  const int of_source_max_;

  absl::Mutex mu_;
  State wanted_ ABSL_GUARDED_BY(mu_) = State::kAccepting;
  State is_ ABSL_GUARDED_BY(mu_) = State::kAccepting;  // the state that the thread has seen

  // Used only by the listener's thread.
  Connections connections_;
  uint64_t next_number_ = 1;
  int calls_ = 0;                      // open calls of all connections that count
  absl::btree_set<uint64_t> unknown_;  // connections after their handshake that are not known
  absl::flat_hash_map<std::string, int> of_source_;  // connections that count, by source
  absl::Duration now_;
  bool accepting_ = false;
  bool listening_ = false;
  bool memory_short_ = false;
  bool crowded_ = false;
  absl::Duration relieved_ = -absl::InfiniteDuration();
  double accepts_, returns_, turns_away_;       // saved up
  absl::Duration saved_;                        // they include what came with time until then
  absl::flat_hash_map<std::string, int> came_;  // by source, since counting_
  absl::Duration counting_;
  absl::Duration told_ = -absl::InfiniteDuration();  // about unauthenticated peers
  std::string piece_, stamped_;

  std::thread thread_;  // last, because it uses the others
};

}  // namespace muster
