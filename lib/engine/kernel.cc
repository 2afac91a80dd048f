#include "lib/engine/kernel.h"

#include "glog/logging.h"
#include "kernels/conversion.h"
#include "lib/engine/element_type.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

// Converts through f32 or i32, because the kernels convert from these to every type.
template <typename T>
std::vector<std::byte> Converted(const std::vector<double>& values, kernels::ElementType from,
                                 const TensorType& type) {
  std::vector<T> exact(values.begin(), values.end());
  std::vector<std::byte> bytes(type.bytes());
  kernels::Convert(bytes.data(), ElementTypeOf(type.dtype), exact.data(), from, exact.size());
  return bytes;
}

std::vector<double> ValuesOf(const v1::Node& node, int64_t elements) {
  if (HasAttribute(node, "values")) return NumbersAttribute(node, "values");
  if (HasAttribute(node, "integers")) {
    const std::vector<int64_t> integers = IntegersAttribute(node, "integers");
    return {integers.begin(), integers.end()};
  }
  return std::vector<double>(elements, NumberAttribute(node, "value"));
}

}  // namespace

std::vector<std::byte> ConstantValue(const v1::Node& node, const TensorType& type) {
  const std::vector<double> values = ValuesOf(node, type.elements());
  CHECK_EQ(values.size(), type.elements()) << node.name();
  return type.dtype == v1::DTYPE_I32 ? Converted<int32_t>(values, kernels::ElementType::kI32, type)
                                     : Converted<float>(values, kernels::ElementType::kF32, type);
}

}  // namespace muster
