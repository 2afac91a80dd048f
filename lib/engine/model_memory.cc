#include "lib/engine/model_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/philox.h"
#include "lib/graph/initializer.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<ModelMemory>> ModelMemory::Create(const v1::Graph& graph,
                                                                 Device& device, uint64_t seed) {
  auto memory = absl::WrapUnique(new ModelMemory);
  RETURN_IF_ERROR(memory->Fill(graph, device, seed));
  return memory;
}

ModelMemory::ModelMemory(const v1::Graph& graph, Device& device, uint64_t seed) {
  const absl::Status filled = Fill(graph, device, seed);
  CHECK(filled.ok()) << filled;
}

absl::Status ModelMemory::Fill(const v1::Graph& graph, Device& device, uint64_t seed) {
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const std::string& name = graph.parameters(p).name();
    size_t elements = 1;
    for (int64_t size : graph.parameters(p).shape()) elements *= size;
    elements_.push_back(elements);
    auto allocate = [&](absl::string_view what) -> absl::StatusOr<float*> {
      ASSIGN_OR_RETURN(Device::Memory memory,
                       device.Allocate(elements * sizeof(float), absl::StrCat(what, name, "'")));
      return reinterpret_cast<float*>(memory_.emplace_back(std::move(memory)).get());
    };
    ASSIGN_OR_RETURN(parameters_.emplace_back(), allocate("the values of parameter '"));
    FillInitialValues(graph.parameters(p).initializer(), seed, p, /*offset=*/0, parameter(p));
    if (graph.gradients().empty()) continue;
    ASSIGN_OR_RETURN(gradients_.emplace_back(), allocate("the gradients of parameter '"));
    std::ranges::fill(gradient(p), NAN);
  }
  return absl::OkStatus();
}

void FillInputs(const v1::Graph& graph, int64_t ids_max, uint64_t seed, Executor& executor) {
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const absl::Span<std::byte> bytes = executor.input(graph.inputs(i).name());
    for (size_t k = 0; k < bytes.size() / 4; ++k) {
      const auto words = kernels::RandomWords(seed, i, k);
      if (graph.inputs(i).dtype() == v1::DTYPE_I32) {
        const auto id = static_cast<int32_t>(words[0] % ids_max);
        std::memcpy(&bytes[4 * k], &id, 4);
      } else {
        const auto value = static_cast<float>(kernels::StandardNormal(words[0], words[1]));
        std::memcpy(&bytes[4 * k], &value, 4);
      }
    }
  }
}

}  // namespace muster
