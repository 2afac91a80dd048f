// The order of an image tensor's values (NCHW, f32) in memory, and copies from one order to
// another.
#pragma once

#include <cstdint>
#include <memory>

namespace muster::kernels {

struct MemoryDescriptor;  // of the CPU kernels: kernels/cpu/primitive.h

// A value type. The default is row-major. Kernels that are fastest on channels in blocks, or
// channels last, name the layouts that they read and write.
class Layout {
 public:
  Layout() = default;
  explicit Layout(const MemoryDescriptor& descriptor);

  bool is_row_major() const { return descriptor_ == nullptr; }
  const MemoryDescriptor* descriptor() const { return descriptor_.get(); }  // null: row-major

  // Returns the bytes of a tensor that takes `row_major_bytes` in row-major order. There are more
  // if the last block of channels has gaps. Gaps hold zeros, and keep them under functions with
  // f(0) = 0. So elementwise functions of tensors with one shape and layout may treat them as flat
  // arrays of bytes() / 4 floats.
  int64_t bytes(int64_t row_major_bytes) const;
  bool is_padded() const;

  // Requires: both are layouts of tensors of one shape.
  bool operator==(const Layout& other) const;

 private:
  std::shared_ptr<const MemoryDescriptor> descriptor_;
};

// Copies a tensor from one layout to another. It is prepared once and runs often, one run at a
// time. Requires: the constructor and Run() use the same number of threads (kernels/threads.h).
class Reorder {
 public:
  // Requires: from != to.
  Reorder(const Layout& from, const Layout& to);
  ~Reorder();
  Reorder(Reorder&&) noexcept;

  // Copies `from` to `to`, which do not overlap. Bandwidth-bound.
  void Run(float* to, const float* from);

 private:
  std::unique_ptr<class Primitive> primitive_;
};

}  // namespace muster::kernels
