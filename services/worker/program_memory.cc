#include "services/worker/program_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/version/build.h"
#include "nlohmann/json.hpp"
#include "services/worker/program/program_protocol.h"
#include "services/worker/training/tensor_slab.h"

namespace muster {
namespace {

using google::protobuf::FieldDescriptor;
using nlohmann::json;

constexpr int kSlabs = 3;
constexpr int64_t kAlignedElements = 16;  // 64 bytes

// Returns the settings of the optimizer that is set, by their names in the job file, and "kind".
json OptimizerOf(const v1::Optimizer& optimizer) {
  const auto* const reflection = optimizer.GetReflection();
  const FieldDescriptor* const kind = reflection->GetOneofFieldDescriptor(
      optimizer, optimizer.GetDescriptor()->FindOneofByName("kind"));
  json settings = json::object();
  if (kind == nullptr) return settings;
  settings["kind"] = kind->name();
  const google::protobuf::Message& set = reflection->GetMessage(optimizer, kind);
  for (int i = 0; i < set.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = set.GetDescriptor()->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      settings[field->name()] = set.GetReflection()->GetDouble(set, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      settings[field->name()] = set.GetReflection()->GetBool(set, field);
    }
  }
  return settings;
}

// Group 0 has the parameters of no group, group g + 1 those of the job file's group g.
json GroupsOf(const v1::TrainingSpec& training, const json& optimizer) {
  const double learning_rate = BaseLearningRate(training.optimizer());
  const double decay = optimizer.value("weight_decay", 0.0);
  json groups = json::array();
  groups.push_back({{"learning_rate", learning_rate}, {"weight_decay", decay}});
  for (const v1::ParameterGroup& group : training.parameter_groups()) {
    const bool decays = !group.has_weight_decay() || group.weight_decay();
    groups.push_back(
        {{"learning_rate",
          learning_rate * (group.has_learning_rate_factor() ? group.learning_rate_factor() : 1)},
         {"weight_decay", group.has_decay() ? group.decay()
                          : decays          ? decay
                                            : 0.0}});
  }
  return groups;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgramMemory>> ProgramMemory::Create(const v1::JobPlan& plan) {
  auto memory = absl::WrapUnique(new ProgramMemory());
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    const int64_t size = ElementCount(parameter);
    memory->offsets_.push_back(memory->elements_);
    memory->sizes_.push_back(size);
    memory->elements_ += (size + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  }
  const size_t bytes = static_cast<size_t>(memory->elements_) * sizeof(float);
  for (int i = 0; i < kSlabs; ++i) {
    ASSIGN_OR_RETURN(std::shared_ptr<SharedSlab> slab,
                     AllocateBackedSlab(bytes, SealedMemory::Others::kWrite));
    memory->slabs_.push_back(std::move(slab));
  }
  return memory;
}

absl::Span<float> ProgramMemory::Tensor(int64_t slab, int parameter) const {
  auto* const base = reinterpret_cast<float*>(slabs_[slab]->memory().data());
  return {base + offsets_[parameter], static_cast<size_t>(sizes_[parameter])};
}

std::vector<absl::Span<float>> ProgramMemory::Tensors(int64_t slab) const {
  std::vector<absl::Span<float>> tensors;
  for (int p = 0; p < std::ssize(offsets_); ++p) tensors.push_back(Tensor(slab, p));
  return tensors;
}

std::vector<absl::Span<std::byte>> ProgramMemory::memory() const {
  std::vector<absl::Span<std::byte>> memory;
  for (const auto& slab : slabs_) memory.push_back(slab->memory());
  return memory;
}

void ProgramMemory::CopyToOtherParity(int parameter, int64_t version) const {
  std::ranges::copy(Tensor(1 + (version & 1), parameter),
                    Tensor(1 + (~version & 1), parameter).begin());
}

absl::StatusOr<std::vector<FileDescriptor>> ProgramMemory::Files() const {
  std::vector<FileDescriptor> files;
  for (const auto& slab : slabs_) {
    files.emplace_back(fcntl(slab->fd(), F_DUPFD_CLOEXEC, 0));
    if (!files.back()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a descriptor for the program's memory: ", std::strerror(errno),
                       ": raise the limit of this process (ulimit -n)"));
    }
  }
  return files;
}

bool HasSchedule(const v1::TrainingSpec& training) {
  const v1::Schedule& schedule = training.schedule();
  return schedule.warmup_steps() > 0 || (schedule.kind_case() != v1::Schedule::kConstant &&
                                         schedule.kind_case() != v1::Schedule::KIND_NOT_SET);
}

std::string WelcomeBody(const v1::JobPlan& plan, const std::string& member,
                        const ProgramMemory& memory) {
  const v1::TrainingSpec& training = plan.spec().training();
  json parameters = json::array();
  for (int p = 0; p < plan.graph().parameters_size(); ++p) {
    const v1::Parameter& parameter = plan.graph().parameters(p);
    const std::optional<int> group = GroupOf(training, parameter);
    parameters.push_back({
        {"name", parameter.name()},
        {"shape", std::vector<int64_t>(parameter.shape().begin(), parameter.shape().end())},
        {"offset", memory.offsets()[p]},
        {"statistic", parameter.has_statistic_momentum()},
        {"frozen", TreatmentOf(training, parameter).frozen},
        {"group", group ? *group + 1 : 0},
    });
  }
  const json optimizer = OptimizerOf(training.optimizer());
  return JsonText(json::object({
      {"protocol", kProgramProtocol},
      {"version", ThisBuild().version},
      {"job", plan.job()},
      {"member", member},
      {"parameters", std::move(parameters)},
      {"groups", GroupsOf(training, optimizer)},
      {"optimizer", optimizer},
      {"elements", memory.elements()},
      {"batch_size", plan.spec().data().batch_size()},
      {"seed", plan.spec().data().seed()},
      {"has_schedule", HasSchedule(training)},
  }));
}

}  // namespace muster
