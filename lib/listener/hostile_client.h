// A client that attacks an HTTP/2 port, for tests of what the port withstands.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

// The attacks. Each is repeated as fast as possible.
enum class Attack : uint8_t {
  kResetCalls,     // by hand: opens calls and resets each at once
  kDeafness,       // by hand: opens calls, acknowledges no settings, reads nothing
  kNoWindow,       // by hand: makes calls and has no window for their answers; correct otherwise
  kCancelStreams,  // with gRPC: opens streams that do not end by themselves, and cancels them
  kCancelCalls,    // with gRPC: opens calls that take a message, and cancels them without one
  kHalfOpen,       // holds many connections that send nothing, or only their greeting
  kSlowHeaders,    // sends header fields a byte at a time, without end: of HTTP/2, and of HTTP/1
  kOversized,      // sends messages that are larger than any server takes, or announces them
  kPings,          // floods of pings; reads nothing
  kControlFrames,  // floods of settings, priorities, windows and empty frames; reads nothing
  kGarbage,        // first bytes of other protocols, including HTTP/1, or random bytes
};

// One attacker of one port of this host, on its own thread, which has a lower priority than all
// others. If it has several attacks, it makes each for a moment, in turn.
class HostileClient {
 public:
  static constexpr std::array kAttacks = {
      Attack::kResetCalls,    Attack::kDeafness,    Attack::kCancelStreams, Attack::kCancelCalls,
      Attack::kHalfOpen,      Attack::kSlowHeaders, Attack::kOversized,     Attack::kPings,
      Attack::kControlFrames, Attack::kGarbage,     Attack::kNoWindow};
  static absl::string_view NameOf(Attack attack);

  struct Options {
    std::string address;  // "127.0.0.1:7070"
    std::vector<Attack> attacks;
    int held_connections = 256;  // held at once, for kHalfOpen
    // The source address, except for attacks with gRPC. Another address of 127.0.0.0/8 than that of
    // other clients makes it another unauthenticated peer.
    std::string source = "127.0.0.1";
  };
  explicit HostileClient(Options options);
  ~HostileClient();  // stops the thread, within about half a second

  // The number of strokes so far: calls, connections or frames, depending on the attack.
  int64_t strokes(Attack attack) const { return strokes_[static_cast<size_t>(attack)]; }
  int64_t strokes() const;

 private:
  void Run();
  void Make(Attack attack);
  bool turn_is_over() const;
  // Counts a stroke of the current attack.
  void Strike() { ++strokes_[static_cast<size_t>(attack_)]; }

  // Connects. Reads and writes on the connection do not wait long. Returns -1 if the port does not
  // accept.
  int Connect();
  // Sends all bytes. Returns false if the peer hangs up. Stops early when the turn is over.
  bool Say(int connection, const std::string& bytes);

  void CallByHand(absl::string_view path, bool reset);
  void LeaveAnswersUnread();
  void OpenAndCancel(const std::vector<std::string>& methods);
  void HoldHalfOpen();
  void SayHeadersSlowly();
  void SendOversizedByHand();
  void SendOversized();
  void FloodWithPings();
  void FloodWithControlFrames();
  void Flood(std::string bytes, const std::string& more);
  void SayGarbage();

  const Options options_;
  std::atomic<bool> stopping_ = false;
  std::array<std::atomic<int64_t>, kAttacks.size()> strokes_ = {};

  // Used only by the thread.
  Attack attack_;
  absl::Duration turn_end_;
  std::mt19937 random_;

  std::thread thread_;  // last, because it uses the others
};

}  // namespace muster
