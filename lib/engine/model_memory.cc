#include "lib/engine/model_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/philox.h"
#include "lib/graph/initializer.h"

namespace muster {

ModelMemory::ModelMemory(const v1::Graph& graph, Device& device, uint64_t seed) {
  for (int p = 0; p < graph.parameters_size(); ++p) {
    size_t elements = 1;
    for (int64_t size : graph.parameters(p).shape()) elements *= size;
    elements_.push_back(elements);
    auto allocate = [&] {
      memory_.push_back(device.Allocate(elements * sizeof(float)));
      return reinterpret_cast<float*>(memory_.back().get());
    };
    parameters_.push_back(allocate());
    FillInitialValues(graph.parameters(p).initializer(), seed, p, /*offset=*/0, parameter(p));
    if (graph.gradients().empty()) continue;
    gradients_.push_back(allocate());
    std::ranges::fill(gradient(p), NAN);
  }
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
