// How the values of an image tensor (NCHW, f32) lie in memory, and the way from one order to
// another.
#pragma once

#include <cstdint>
#include <memory>

namespace muster::kernels {

struct MemoryDescriptor;  // of the CPU kernels: kernels/cpu/primitive.h

// A value. Row-major unless a kernel says otherwise: the kernels that are fastest on channels in
// blocks, or channels last, name the layouts they read and write.
class Layout {
 public:
  Layout() = default;
  explicit Layout(const MemoryDescriptor& descriptor);

  bool is_row_major() const { return descriptor_ == nullptr; }
  const MemoryDescriptor* descriptor() const { return descriptor_.get(); }  // null: row-major

  // Bytes of a tensor that takes `row_major_bytes` in row-major order. More when the last block of
  // channels is partly empty; what is empty is zero, and stays zero under functions with f(0) = 0.
  // Two tensors of one shape and layout are added, rectified... as flat arrays of bytes() / 4
  // floats.
  int64_t bytes(int64_t row_major_bytes) const;
  bool is_padded() const;

  // Of layouts of tensors of one shape.
  bool operator==(const Layout& other) const;

 private:
  std::shared_ptr<const MemoryDescriptor> descriptor_;
};

// Copies a tensor from one layout to another. Prepared once, run often; one run at a time. Prepare
// it on a thread with as many threads (kernels/threads.h) as the one that runs it.
class Reorder {
 public:
  // from != to.
  Reorder(const Layout& from, const Layout& to);
  ~Reorder();
  Reorder(Reorder&&) noexcept;

  // Bandwidth-bound. The buffers do not overlap.
  void Run(float* to, const float* from);

 private:
  std::unique_ptr<class Primitive> primitive_;
};

}  // namespace muster::kernels
