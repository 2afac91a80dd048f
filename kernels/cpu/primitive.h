// oneDNN's primitives and memory descriptors, for CPU kernels that use them. The headers in
// kernels/ itself do not include <dnnl.h>; this one does.
#pragma once

#include <dnnl.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/layout.h"

namespace muster::kernels {

struct MemoryDescriptor {
  dnnl_memory_desc_t value;
};

// Aborts the process on an error: a wrong call is a bug of the kernels.
void CheckDnnl(dnnl_status_t status, const char* call);

// Describes f32 memory in one of oneDNN's orders (dnnl_format_tag_any: the primitive chooses).
dnnl_memory_desc_t Describe(const std::vector<int64_t>& dimensions, dnnl_format_tag_t order);
dnnl_memory_desc_t DescribeRowMajor(const dnnl_memory_desc_t& dimensions);

// Returns the layout of `descriptor`: the row-major layout if it means the same.
Layout LayoutOf(const dnnl_memory_desc_t& descriptor);

// Owns a primitive descriptor.
class PrimitiveDescriptor {
 public:
  // `operation` is one of oneDNN's operation descriptors; `forward` its hint, or null.
  explicit PrimitiveDescriptor(const_dnnl_op_desc_t operation,
                               const PrimitiveDescriptor* forward = nullptr);
  // Makes the descriptor of a reorder.
  PrimitiveDescriptor(const dnnl_memory_desc_t& from, const dnnl_memory_desc_t& to);
  ~PrimitiveDescriptor() { dnnl_primitive_desc_destroy(descriptor_); }
  PrimitiveDescriptor(const PrimitiveDescriptor&) = delete;

  const_dnnl_primitive_desc_t get() const { return descriptor_; }
  // Returns the memory of an argument: DNNL_ARG_SRC...
  const dnnl_memory_desc_t& Argument(int argument) const;

 private:
  dnnl_primitive_desc_t descriptor_ = nullptr;
};

// A primitive that is executed often with few different pointers. The caller passes scratch memory
// to each execution.
class Primitive {
 public:
  // `arguments` are the numbers of the arguments (DNNL_ARG_SRC...), without the scratchpad.
  Primitive(const PrimitiveDescriptor& descriptor, std::vector<int> arguments);
  ~Primitive();
  Primitive(const Primitive&) = delete;

  int64_t scratchpad_bytes() const { return scratchpad_bytes_; }

  // Executes the primitive. `memory` has the order of `arguments`.
  void Execute(std::initializer_list<const void*> memory, std::byte* scratchpad);

 private:
  void Bind(size_t argument, const void* memory);

  dnnl_primitive_t primitive_;
  dnnl_stream_t stream_;
  int64_t scratchpad_bytes_;
  std::vector<dnnl_exec_arg_t> arguments_;
  std::vector<const void*> bound_;  // one per argument
};

}  // namespace muster::kernels
