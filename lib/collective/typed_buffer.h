// Memory that a collective operation reads or writes: elements of one floating type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace muster {

enum class CollectiveType : uint8_t { kF32, kBf16, kF16, kF64 };

constexpr int64_t BytesOf(CollectiveType type) {
  if (type == CollectiveType::kF64) return 8;
  return type == CollectiveType::kF32 ? 4 : 2;
}

// Elements that an operation may write. C++ has no bf16 and no f16, so they are given as their bits
// and a type. Does not own the elements. `data` is aligned as its type, and may be null if there
// are no elements.
struct TypedBuffer {
  TypedBuffer(void* data, int64_t elements, CollectiveType type)
      : data(data), elements(elements), type(type) {}
  TypedBuffer(absl::Span<float> span)  // NOLINT: implicit, because f32 is the usual type
      : TypedBuffer(span.data(), static_cast<int64_t>(span.size()), CollectiveType::kF32) {}
  TypedBuffer(absl::Span<double> span)  // NOLINT: implicit
      : TypedBuffer(span.data(), static_cast<int64_t>(span.size()), CollectiveType::kF64) {}

  int64_t bytes() const { return elements * BytesOf(type); }
  // Returns the address of element `i`.
  std::byte* at(int64_t i) const { return static_cast<std::byte*>(data) + i * BytesOf(type); }

  void* data;
  int64_t elements;
  CollectiveType type;
};

// Elements that an operation only reads.
struct ConstTypedBuffer {
  ConstTypedBuffer(const void* data, int64_t elements, CollectiveType type)
      : data(data), elements(elements), type(type) {}
  ConstTypedBuffer(const TypedBuffer& buffer)  // NOLINT: implicit
      : ConstTypedBuffer(buffer.data, buffer.elements, buffer.type) {}
  ConstTypedBuffer(absl::Span<const float> span)  // NOLINT: implicit
      : ConstTypedBuffer(span.data(), static_cast<int64_t>(span.size()), CollectiveType::kF32) {}
  ConstTypedBuffer(absl::Span<const double> span)  // NOLINT: implicit
      : ConstTypedBuffer(span.data(), static_cast<int64_t>(span.size()), CollectiveType::kF64) {}

  int64_t bytes() const { return elements * BytesOf(type); }

  const void* data;
  int64_t elements;
  CollectiveType type;
};

// Returns whether `slice` has the type of `data` and one of `parts` equal parts of its elements.
inline bool IsSliceOf(const ConstTypedBuffer& slice, const ConstTypedBuffer& data, int parts) {
  return slice.type == data.type && slice.elements * parts == data.elements;
}

}  // namespace muster
