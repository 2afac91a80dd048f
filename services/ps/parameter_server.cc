#include "services/ps/parameter_server.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Create(Options options) {
  auto server = absl::WrapUnique(new ParameterServer(std::move(options)));
  for (int i = 0; i < server->options_.threads; ++i) {
    ASSIGN_OR_RETURN(auto thread,
                     ShardThread::Start(server->options_.transport, &server->metrics_));
    server->environment_.threads.push_back(thread.get());
    server->threads_.push_back(std::move(thread));
  }
  return server;
}

ParameterServer::ParameterServer(Options options)
    : options_(std::move(options)),
      metrics_(*options_.metrics),
      budget_(options_.memory_bytes),
      checkpoints_(options_.coordinator, options_.checkpoint_root),
      environment_({.member = options_.member,
                    .budget = &budget_,
                    .checkpoints = &checkpoints_,
                    .metrics = &metrics_,
                    .report_soon = options_.report_soon}) {
  metrics_.memory_bytes.Set(static_cast<double>(budget_.capacity_bytes()));
}

ParameterServer::~ParameterServer() { Stop(); }

void ParameterServer::Stop() {
  CoordinatorLost();
  for (auto& thread : threads_) thread->Stop();  // frees memory that peers still hold
  std::vector<std::unique_ptr<ServedJob>> leaving;
  {
    absl::MutexLock lock(&mu_);
    leaving.swap(leaving_);
  }
}

void ParameterServer::Describe(v1::Hello& hello) const {
  hello.set_member(options_.member);
  hello.set_role(v1::PS);
  hello.set_memory_bytes(budget_.capacity_bytes());
  for (const auto& thread : threads_) hello.add_addresses(thread->address());
  hello.set_transport(threads_.front()->transport_name());
}

std::vector<v1::JobReport> ParameterServer::Report() {
  absl::MutexLock lock(&mu_);
  std::erase_if(leaving_, [](const auto& job) { return job->gone(); });
  metrics_.shard_bytes.Set(static_cast<double>(budget_.used_bytes()));
  std::vector<v1::JobReport> reports;
  for (const auto& job : jobs_) {
    reports.push_back(job->Report());
    job->ShowProgress();
  }
  return reports;
}

void ParameterServer::Handle(const v1::Directive& directive) {
  absl::MutexLock lock(&mu_);
  if (directive.has_prepare()) return Prepare(directive.prepare().plan());
  if (directive.has_release()) return Release(directive.job(), directive.generation());
  ServedJob* job = Find(directive.job());
  if (job == nullptr || job->plan().generation() != directive.generation()) return;
  if (directive.has_start()) return job->Start(directive.start().total_steps());
  if (directive.has_halt()) return job->Halt();
  if (directive.has_snapshot()) job->TakeSnapshot(directive.snapshot());
}

void ParameterServer::CoordinatorLost() {
  absl::MutexLock lock(&mu_);
  while (!jobs_.empty()) {
    Release(std::string(jobs_.back()->plan().job()), jobs_.back()->plan().generation());
  }
}

void ParameterServer::Prepare(const v1::JobPlan& plan) {
  HeldShards held;
  // The trace belongs to the job and outlives its generations.
  auto trace = std::make_shared<Trace>();
  if (ServedJob* job = Find(plan.job())) {
    if (job->plan().generation() >= plan.generation()) return;
    if (job->plan().generation() == plan.carries()) {
      if (!job->EndSaving()) return;  // the directive will be repeated
      held = job->TakeHeld();
    }
    trace = job->trace();
    Release(plan.job(), job->plan().generation());
  }
  LOG(INFO) << plan.job() << ", generation " << plan.generation() << ": preparing";
  jobs_.push_back(std::make_unique<ServedJob>(std::make_shared<const v1::JobPlan>(plan),
                                              &environment_, std::move(held), std::move(trace)));
  options_.report_soon();
}

std::shared_ptr<Trace> ParameterServer::TraceOf(const std::string& job) {
  absl::MutexLock lock(&mu_);
  const ServedJob* const served = Find(job);
  return served == nullptr ? nullptr : served->trace();
}

ServedJob* ParameterServer::Find(const std::string& job) {
  auto found = std::find_if(jobs_.begin(), jobs_.end(),
                            [&](const auto& served) { return served->plan().job() == job; });
  return found == jobs_.end() ? nullptr : found->get();
}

void ParameterServer::Release(const std::string& job, uint32_t generation) {
  auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& served) {
    return served->plan().job() == job && served->plan().generation() <= generation;
  });
  if (found == jobs_.end()) return;
  const LogScope scope({.job = job, .generation = (*found)->plan().generation()});
  LOG(INFO) << job << ", generation " << (*found)->plan().generation() << ": releasing";
  (*found)->Release();
  metrics_.ForgetJob(job);
  leaving_.push_back(std::move(*found));
  jobs_.erase(found);
  options_.report_soon();
}

}  // namespace muster
