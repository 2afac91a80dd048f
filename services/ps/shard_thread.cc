#include "services/ps/shard_thread.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::Duration kWaitMax = absl::Seconds(10);  // every event that matters wakes the thread

}  // namespace

absl::StatusOr<std::unique_ptr<ShardThread>> ShardThread::Start(TransportFactory factory,
                                                                PsMetrics* metrics,
                                                                absl::Duration release_wait) {
  auto thread = absl::WrapUnique(new ShardThread(std::move(factory), metrics, release_wait));
  RETURN_IF_ERROR(thread->AwaitTransport());
  return thread;
}

ShardThread::ShardThread(TransportFactory factory, PsMetrics* metrics, absl::Duration release_wait)
    : metrics_(metrics),
      counts_(metrics->AddShardThread()),
      release_wait_(release_wait),
      mailbox_(limits::kMailboxMessagesMax,
               [this] {
                 mail_ = true;
                 Wake();
               }),
      thread_([this, factory = std::move(factory)] { Run(factory); }) {}

ShardThread::~ShardThread() { Stop(); }

void ShardThread::Stop() {
  stopping_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
}

void ShardThread::Wake() {
  absl::MutexLock lock(&mu_);
  if (awake_ != nullptr) awake_->Wake();
}

absl::Status ShardThread::AwaitTransport() {
  absl::MutexLock lock(&mu_);
  auto made = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return made_.has_value(); };
  mu_.Await(absl::Condition(&made));
  return *made_;
}

absl::Status ShardThread::MakeLoop(const TransportFactory& factory) {
  ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, factory());
  address_ = transport->address();
  transport_name_ = transport->name();
  loop_ = std::make_unique<ShardLoop>(std::move(transport), metrics_, &counts_, release_wait_);
  absl::MutexLock lock(&mu_);
  awake_ = &loop_->transport();
  return absl::OkStatus();
}

void ShardThread::Run(const TransportFactory& factory) {
  const absl::Status made = MakeLoop(factory);
  {
    absl::MutexLock lock(&mu_);
    made_ = made;
  }
  if (!made.ok()) return;
  Serve();
  // Closed before the last commands are taken, so that every accepted command runs. A shard that
  // such a command installs goes back to its listener with all others.
  mailbox_.Close();
  RunCommands();
  {
    // Cleared before the transport is destroyed: Wake() uses it under the lock.
    absl::MutexLock lock(&mu_);
    awake_ = nullptr;
  }
  loop_.reset();
}

void ShardThread::Serve() {
  while (!stopping_) {
    // Loads first, because an exchange in every turn would cost more. Clears the flag before it
    // takes the commands: a command that is posted in between runs now or sets the flag again.
    if (mail_.load(std::memory_order_acquire) && mail_.exchange(false)) RunCommands();
    if (loop_->Turn(ShardLoop::Clock::now) == 0) loop_->transport().Wait(kWaitMax);
  }
}

void ShardThread::RunCommands() {
  for (Command& command : mailbox_.TakeAll()) command();
}

void ShardThread::Install(std::unique_ptr<ParameterShard> shard, ShardListener* listener,
                          ShardProgress* progress) {
  const ShardIndex number = shard->shard();
  const bool posted = mailbox_.Post([this, shard = std::move(shard), listener, progress]() mutable {
    loop_->Install(std::move(shard), listener, progress);
  });
  if (!posted) listener->ShardInstalled(number, absl::CancelledError("the ps is shutting down"));
}

void ShardThread::StartJob(uint64_t job, uint32_t generation, int64_t total_steps) {
  mailbox_.Post([=, this] { loop_->StartJob(job, generation, total_steps); });
}

void ShardThread::TakeSnapshot(uint64_t job, uint32_t generation, uint64_t id, int64_t step) {
  mailbox_.Post([=, this] { loop_->TakeSnapshot(job, generation, id, step); });
}

void ShardThread::SnapshotWritten(uint64_t job, uint32_t generation, uint64_t id, int64_t step) {
  mailbox_.Post([=, this] { loop_->SnapshotWritten(job, generation, id, step); });
}

void ShardThread::Halt(uint64_t job, uint32_t generation) {
  mailbox_.Post([=, this] { loop_->Halt(job, generation); });
}

void ShardThread::Release(uint64_t job, uint32_t generation) {
  mailbox_.Post([=, this] { loop_->Release(job, generation); });
}

}  // namespace muster
