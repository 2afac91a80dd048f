// A client that means harm to a port where HTTP/2 is spoken, for tests of who bears it.
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

// What it does, as fast as it can, over and over.
enum class Attack : uint8_t {
  kResetCalls,     // by hand: opens calls and resets each at once
  kDeafness,       // by hand: opens calls, acknowledges no settings, reads nothing
  kNoWindow,       // by hand: makes calls and has no room for their answers; polite otherwise
  kCancelStreams,  // through gRPC: opens streams that do not end by themselves, and cancels them
  kCancelCalls,    // through gRPC: opens calls that take a message, and cancels them without one
  kHalfOpen,       // holds many connections that say nothing, or their greeting alone
  kSlowHeaders,    // says header fields a byte at a time, without end: of HTTP/2, and of HTTP/1
  kOversized,      // sends messages that are larger than anybody takes, or says that they are
  kPings,          // floods of them; reads nothing
  kControlFrames,  // floods of settings, priorities, windows and empty frames; reads nothing
  kGarbage,        // first bytes of other protocols, HTTP/1 among them, or of none
};

// One attacker of one port of this host, on a thread of its own that gives way to everybody else's.
// With several attacks it makes each for a moment, in turn.
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
    int held_connections = 256;  // at once, of kHalfOpen
    // Where it comes from, but for what it does through gRPC: another address of 127.0.0.0/8 than
    // everybody else's is another stranger's.
    std::string source = "127.0.0.1";
  };
  explicit HostileClient(Options options);
  ~HostileClient();  // stops, within half a second or so

  // How often it has struck: calls, connections or frames, as the attack has them.
  int64_t strokes(Attack attack) const { return strokes_[static_cast<size_t>(attack)]; }
  int64_t strokes() const;

 private:
  void Run();
  void Make(Attack attack);
  bool turn_is_over() const;
  // Counts for the attack that is being made.
  void Strike() { ++strokes_[static_cast<size_t>(attack_)]; }

  // A connection on which nothing is waited for long; -1: nobody accepts.
  int Connect();
  // Sends all of it, unless the peer hangs up (false) or the turn is over.
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

  // All of its thread.
  Attack attack_;
  absl::Duration turn_end_;
  std::mt19937 random_;

  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
