// A worker's end of the data plane and a listener, for tests of shard threads.
#pragma once

#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/shard_thread.h"

namespace muster {

inline constexpr absl::Duration kPatience = absl::Seconds(20);

using Values = std::vector<float>;

// A worker's end of the data plane, driven by the test's thread.
class FakeWorker : private MessageReceiver {
 public:
  struct Message {
    WireHeader header;
    Values payload;
  };

  FakeWorker(InProcessNetwork* network, const v1::JobPlan& plan, int rank)
      : FakeWorker(network->MakeTransport(), plan, rank) {}
  FakeWorker(std::unique_ptr<Transport> transport, const v1::JobPlan& plan, int rank)
      : plan_(plan), rank_(rank), transport_(std::move(transport)), buffer_(1 << 20) {
    transport_->SetReceiver(this);
  }

  // The worker's credentials for the plan's session.
  LinkCredentials Credentials() const {
    return {.self = {.job = plan_.job_number(),
                     .generation = plan_.generation(),
                     .role = LinkRole::kWorker,
                     .index = static_cast<uint32_t>(rank_)},
            .token = *SessionToken::FromBytes(plan_.session_token())};
  }
  void Connect(const std::string& address) { Connect(address, Credentials()); }
  void Connect(const std::string& address, const LinkCredentials& credentials) {
    lost_ = absl::OkStatus();
    inbox_.clear();  // messages of the link before
    peer_ = *transport_->Connect(address, credentials);
  }

  // Later messages are sent as `rank` of `plan`, on the same link.
  void Become(const v1::JobPlan& plan, int rank) {
    plan_ = plan;
    rank_ = rank;
  }

  void Send(WireHeader header, const std::string& payload = "") {
    header.length = payload.size();
    const auto& kept = sent_.emplace_back(payload);
    transport_->Send(peer_, header, {reinterpret_cast<const std::byte*>(kept.data()), kept.size()},
                     nullptr);
  }

  void Hello() {
    Send({.kind = MessageKind::kHello,
          .generation = plan_.generation(),
          .job = plan_.job_number(),
          .rank = static_cast<uint32_t>(rank_)});
  }

  void Push(int64_t step, int chunk, float gradient) {
    Push(step, chunk, Values(plan_.chunks(chunk).elements(), gradient));
  }
  void Push(int64_t step, int chunk, const Values& values) {
    Send(PushHeader(plan_, step, chunk, rank_),
         {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  // Pushes without a gradient. Only for jobs with a program.
  void PushNone(int64_t step, int chunk) {
    WireHeader header = PushHeader(plan_, step, chunk, rank_);
    header.dtype = WireDType::kNone;
    Send(header);
  }

  // Returns the next message, or one with `reason` kNone and job 0 after `patience`.
  Message Receive(absl::Duration patience = kPatience) {
    const absl::Time deadline = absl::Now() + patience;
    while (inbox_.empty() && absl::Now() < deadline) {
      if (transport_->Progress() == 0) transport_->Wait(deadline - absl::Now());
    }
    if (inbox_.empty()) return {};
    Message message = std::move(inbox_.front());
    inbox_.erase(inbox_.begin());
    return message;
  }

  // OK while the link is there.
  const absl::Status& lost() {
    transport_->Progress();
    return lost_;
  }
  absl::Status AwaitLost() {
    const absl::Time deadline = absl::Now() + kPatience;
    while (lost_.ok() && absl::Now() < deadline) {
      if (transport_->Progress() == 0) transport_->Wait(deadline - absl::Now());
    }
    return lost_;
  }

  void Greet(const std::string& address) {
    Connect(address);
    Hello();
    EXPECT_EQ(Receive().header.kind, MessageKind::kHello);
  }

 private:
  void PeerJoined(PeerId, const LinkIdentity&) override {}
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    return absl::MakeSpan(buffer_).first(header.length);
  }
  void Received(PeerId, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease) override {
    Values values(payload.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), payload.data(), payload.size());
    inbox_.push_back({header, values});
  }
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId peer, const absl::Status& why) override {
    if (peer == peer_) lost_ = why;
  }

  v1::JobPlan plan_;
  int rank_;
  std::deque<std::string> sent_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::byte> buffer_;
  std::vector<Message> inbox_;
  PeerId peer_ = PeerId::kNone;
  absl::Status lost_;  // OK until the link is lost
};

// Counts calls, and waits for expected ones.
class FakeListener : public ShardListener {
 public:
  void ShardInstalled(ShardIndex, const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    ++(status.ok() ? installed_ : refused_);
  }
  void ShardFailed(ShardIndex, const absl::Status&, const std::string& culprit) override {
    absl::MutexLock lock(&mu_);
    culprits_.push_back(culprit);
  }
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override {
    absl::MutexLock lock(&mu_);
    snapshots_.push_back(std::move(snapshot));
  }
  void SnapshotDeclined(ShardIndex, uint64_t, int64_t, v1::SnapshotOutcome,
                        const std::string&) override {
    absl::MutexLock lock(&mu_);
    ++declined_;
  }
  void LinkLost(ShardIndex, const std::string& member) override {
    absl::MutexLock lock(&mu_);
    lost_links_.push_back(member);
  }
  void ShardReleased(std::unique_ptr<ParameterShard> shard) override {
    absl::MutexLock lock(&mu_);
    if (keeps_shard_) shard_ = std::move(shard);
    shard.reset();
    ++released_;
  }

  void AwaitInstalled(int count) {
    Await([=, this] { return installed_ >= count; });
  }
  void AwaitRefused(int count) {
    Await([=, this] { return refused_ >= count; });
  }
  void AwaitReleased(int count) {
    Await([=, this] { return released_ >= count; });
  }
  // Keeps shards that are released from now on; earlier ones were destroyed.
  void KeepReleasedShard() {
    absl::MutexLock lock(&mu_);
    keeps_shard_ = true;
  }
  std::unique_ptr<ParameterShard> TakeShard() {
    absl::MutexLock lock(&mu_);
    return std::move(shard_);
  }
  std::vector<std::string> AwaitLostLinks(size_t count) {
    Await([=, this] { return lost_links_.size() >= count; });
    absl::MutexLock lock(&mu_);
    return lost_links_;
  }
  void AwaitDeclined(int count) {
    Await([=, this] { return declined_ >= count; });
  }
  std::shared_ptr<const ShardSnapshot> AwaitSnapshot() {
    Await([this] { return !snapshots_.empty(); });
    absl::MutexLock lock(&mu_);
    return snapshots_.empty() ? nullptr : snapshots_.back();
  }
  std::vector<std::string> AwaitCulprits(size_t count) {
    Await([=, this] { return culprits_.size() >= count; });
    absl::MutexLock lock(&mu_);
    return culprits_;
  }
  int snapshots() {
    absl::MutexLock lock(&mu_);
    return static_cast<int>(snapshots_.size());
  }
  int refused() {
    absl::MutexLock lock(&mu_);
    return refused_;
  }
  int released() {
    absl::MutexLock lock(&mu_);
    return released_;
  }

 private:
  void Await(std::function<bool()> condition) {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(AwaitFor(&mu_, absl::Condition(&condition), kPatience));
  }

  absl::Mutex mu_;
  int installed_ = 0;
  int refused_ = 0;
  int released_ = 0;
  int declined_ = 0;
  std::vector<std::string> culprits_;  // of shards that failed
  std::vector<std::string> lost_links_;
  bool keeps_shard_ = false;
  std::unique_ptr<ParameterShard> shard_;  // the shard that was released last
  std::vector<std::shared_ptr<const ShardSnapshot>> snapshots_;
};

}  // namespace muster
