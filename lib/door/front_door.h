// A port that strangers reach: takes connections in and passes on what they carry, no faster than
// the gRPC server behind it can clear it away.
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
#include "lib/door/call_credit.h"
#include "lib/door/call_stamp.h"
#include "lib/limits/limits.h"
#include "lib/security/tls_connection.h"
#include "lib/security/tls_folder.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// gRPC 1.51 bounds neither the calls that a client has abandoned and the server has not cleared
// away yet, nor those of a client that acknowledges no settings, nor answers that nobody reads, nor
// connections. Behind this door a connection has what its CallCredit allows, all together have
// `calls_max` calls, and who does not read is not heard.
//
// With TLS it is the server's end of it, so that it sees what it counts. Every call can be stamped
// with who its connection belongs to, as far as that is known, and from where it comes: gRPC behind
// the door knows no client.
//
// One thread passes on what all connections carry. Of each it keeps one piece at most, and only
// while the other side takes no more. Not thread-safe itself.
class FrontDoor {
 public:
  struct Options {
    CallCredit::Limits credit = {.first = limits::kCallsOfNewConnectionMax,
                                 .most = limits::kStreamsOfConnectionMax + limits::kShardThreadsMax,
                                 .per_second = limits::kCallsOfConnectionPerSecond};
    // Beyond these a connection may still have kCallsAlways. Calls of clients with a certificate do
    // not count.
    int calls_max = limits::kCallsOpenMax;
    // So many calls of all connections give their credit back when they end; as many as in kSaved
    // at once.
    double returns_per_second = limits::kCallsEndedPerSecond;
    int connections_max = limits::kConnectionsMax;
    // Of them those whose client has shown no certificate, with TLS: who came first goes for who
    // comes, so that members always find room.
    int unknown_max = limits::kConnectionsMax - limits::kAttachedMembersMax;
    // Of those places (of unknown_max with TLS, else of all) one address may have this part, an
    // IPv6 network of 64 bits being one: its idlest connection goes for its next. With TLS who
    // shakes hands counts, and who has shown a certificate does not.
    double address_share = 0.8;
    // When more come, addresses share them.
    double connections_per_second = limits::kConnectionsPerSecond;
    // While the process has more memory, only connections begin calls that have not lately begun
    // many, and those are hung up on whose messages under way may have the most of it.
    int64_t resident_bytes_max = limits::kResidentBytesMax;
    std::function<int64_t()> resident_bytes = ResidentBytes;  // often: must be cheap
    int64_t spared_bytes = 2 * limits::kRequestBytesMax;      // nobody who has less is
    // While it says so only connections begin calls that have not lately begun many, as when memory
    // is short, and calls that end give no credit back at once. Asked often; null: never.
    std::function<bool()> crowded = nullptr;
    absl::Duration greeting_max = limits::kFirstMessageMax;  // the handshake included
    TlsServer* tls = nullptr;  // null: connections are not encrypted; outlives the door
    // The field of their headers that calls are stamped in, "" for none, and what is written there
    // of a client, by its certificate or nobody known, and its address.
    std::string stamp_field = "";
    std::function<std::string(const std::optional<Identity>&, absl::string_view)> stamp = nullptr;
  };
  static constexpr int kCallsAlways = 4;
  // Of this process.
  static int64_t ResidentBytes();
  static constexpr absl::Duration kSaved = absl::Seconds(4);

  // Listens at host:port, where 0.0.0.0 and [::] are all addresses of this host and port 0 is one
  // that is free. UNAVAILABLE: nobody can listen there; INVALID_ARGUMENT: no host:port.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Listen(const std::string& host_port,
                                                           const Options& options);
  // Hangs up on everybody.
  ~FrontDoor();

  int port() const { return port_; }

  // Lets connections in. `serve` is given the server's end of each, a stream socket that does not
  // block and is the server's own from then on; on the door's thread. Once.
  void Open(std::function<void(int socket)> serve);
  // Lets nobody in any more; who is in stays. `serve` is not called once this has returned.
  void StopAccepting();

 private:
  // What goes one way and could not go on.
  struct Way {
    std::string held;
    size_t passed = 0;  // so much of it waits for nothing but the other side
  };
  struct Connection {
    FileDescriptor client, server;  // no server while hands are shaken
    std::string address;            // the client's
    std::string from;               // it, or its network of IPv6
    std::string source;             // what of it counts; "" where it does not count
    std::unique_ptr<TlsConnection> tls;
    bool shaking = false;
    bool known = false;  // by a certificate, other than a submitter's
    absl::Time certificate_ends = absl::InfiniteFuture();  // the client's, if it has shown one
    std::unique_ptr<CallStamp> stamp;
    CallCredit credit;
    absl::Duration opened;
    absl::Duration active;  // when something last happened at it
    Way up = {}, down = {};
    uint32_t client_events = 0, server_events = 0;  // that are watched
    bool server_gone = false;                       // what it said last is still passed on
  };
  using Connections = absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>>;
  struct Ways {
    bool up = false, down = false;
  };
  enum class Fate { kStays, kEnds };
  enum class State { kAccepting, kStaying, kClosed };

  FrontDoor(const Options& options, std::vector<FileDescriptor> listeners, FileDescriptor events,
            FileDescriptor waker);

  void Wake();  // the door's thread

  // All of the door's thread.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Accept();
  bool may_accept() const;
  bool HasTurn(const std::string& source);
  bool MayTell();  // of strangers, in the log
  // Puts out the idlest connection without calls, of this source or of all; false: there is none.
  bool MakeRoom(absl::string_view source = "");
  bool MakeRoomForSource(const std::string& source);
  // Where all have calls. Puts out the oldest connection without a certificate, where those have
  // all places that are theirs; else the idlest one of the address that has the most, if that is
  // more than a quarter of all places and not `newcomer`. False: there is none.
  bool MakeRoomOfLargest(absl::string_view newcomer);
  void Admit(FileDescriptor client, std::string source);
  void Uncount(Connection& connection);
  void Shake(uint64_t number, Connection& connection);
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
  State is_ ABSL_GUARDED_BY(mu_) = State::kAccepting;  // as the thread knows it

  // All of the door's thread.
  Connections connections_;
  uint64_t next_number_ = 1;
  int calls_ = 0;                      // open, of all connections whose calls count
  absl::btree_set<uint64_t> unknown_;  // connections that have shaken hands and are not known
  absl::flat_hash_map<std::string, int> of_source_;  // connections that count
  absl::Duration now_;
  bool accepting_ = false;
  bool listening_ = false;
  bool memory_short_ = false;
  bool crowded_ = false;
  absl::Duration relieved_ = -absl::InfiniteDuration();
  double accepts_, returns_, turns_away_;       // that are saved up
  absl::Duration saved_;                        // until when they are
  absl::flat_hash_map<std::string, int> came_;  // of each source, since counting_
  absl::Duration counting_;
  absl::Duration told_ = -absl::InfiniteDuration();  // of strangers
  std::string piece_, stamped_;

  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
