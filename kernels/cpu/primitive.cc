#include "kernels/cpu/primitive.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace muster::kernels {
namespace {

// Returns the engine, which lives as long as the process.
dnnl_engine_t Engine() {
  static const dnnl_engine_t engine = [] {
    dnnl_engine_t created;
    CheckDnnl(dnnl_engine_create(&created, dnnl_cpu, 0), "dnnl_engine_create");
    return created;
  }();
  return engine;
}

}  // namespace

void CheckDnnl(dnnl_status_t status, const char* call) {
  if (status == dnnl_success) return;
  std::fprintf(stderr, "%s: status %d\n", call, static_cast<int>(status));
  std::abort();
}

dnnl_memory_desc_t Describe(const std::vector<int64_t>& dimensions, dnnl_format_tag_t order) {
  dnnl_memory_desc_t descriptor;
  CheckDnnl(dnnl_memory_desc_init_by_tag(&descriptor, dimensions.size(), dimensions.data(),
                                         dnnl_f32, order),
            "dnnl_memory_desc_init_by_tag");
  return descriptor;
}

dnnl_memory_desc_t DescribeRowMajor(const dnnl_memory_desc_t& dimensions) {
  dnnl_memory_desc_t descriptor;
  CheckDnnl(dnnl_memory_desc_init_by_strides(&descriptor, dimensions.ndims, dimensions.dims,
                                             dnnl_f32, /*strides: dense=*/nullptr),
            "dnnl_memory_desc_init_by_strides");
  return descriptor;
}

Layout LayoutOf(const dnnl_memory_desc_t& descriptor) {
  const dnnl_memory_desc_t row_major = DescribeRowMajor(descriptor);
  return dnnl_memory_desc_equal(&descriptor, &row_major) ? Layout()
                                                         : Layout(MemoryDescriptor{descriptor});
}

PrimitiveDescriptor::PrimitiveDescriptor(const_dnnl_op_desc_t operation,
                                         const PrimitiveDescriptor* forward) {
  dnnl_primitive_attr_t attributes;
  CheckDnnl(dnnl_primitive_attr_create(&attributes), "dnnl_primitive_attr_create");
  CheckDnnl(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user),
            "dnnl_primitive_attr_set_scratchpad_mode");
  CheckDnnl(dnnl_primitive_desc_create(&descriptor_, operation, attributes, Engine(),
                                       forward == nullptr ? nullptr : forward->get()),
            "dnnl_primitive_desc_create");
  dnnl_primitive_attr_destroy(attributes);
}

PrimitiveDescriptor::PrimitiveDescriptor(const dnnl_memory_desc_t& from,
                                         const dnnl_memory_desc_t& to) {
  dnnl_primitive_attr_t attributes;
  CheckDnnl(dnnl_primitive_attr_create(&attributes), "dnnl_primitive_attr_create");
  CheckDnnl(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user),
            "dnnl_primitive_attr_set_scratchpad_mode");
  CheckDnnl(
      dnnl_reorder_primitive_desc_create(&descriptor_, &from, Engine(), &to, Engine(), attributes),
      "dnnl_reorder_primitive_desc_create");
  dnnl_primitive_attr_destroy(attributes);
}

const dnnl_memory_desc_t& PrimitiveDescriptor::Argument(int argument) const {
  return *dnnl_primitive_desc_query_md(descriptor_, dnnl_query_exec_arg_md, argument);
}

Primitive::Primitive(const PrimitiveDescriptor& descriptor, std::vector<int> arguments) {
  CheckDnnl(dnnl_primitive_create(&primitive_, descriptor.get()), "dnnl_primitive_create");
  CheckDnnl(dnnl_stream_create(&stream_, Engine(), dnnl_stream_default_flags),
            "dnnl_stream_create");
  scratchpad_bytes_ = dnnl_memory_desc_get_size(&descriptor.Argument(DNNL_ARG_SCRATCHPAD));
  arguments.push_back(DNNL_ARG_SCRATCHPAD);
  for (int argument : arguments) {
    dnnl_memory_t memory;
    CheckDnnl(
        dnnl_memory_create(&memory, &descriptor.Argument(argument), Engine(), DNNL_MEMORY_NONE),
        "dnnl_memory_create");
    arguments_.push_back({argument, memory});
  }
  bound_.resize(arguments_.size(), nullptr);
}

Primitive::~Primitive() {
  for (const dnnl_exec_arg_t& argument : arguments_) dnnl_memory_destroy(argument.memory);
  dnnl_stream_destroy(stream_);
  dnnl_primitive_destroy(primitive_);
}

// oneDNN fills the gaps of padded memory with zeros when memory is bound, which takes time. So
// memory is bound only if the pointer has changed. The gaps of memory that a primitive has written
// are zero already.
void Primitive::Bind(size_t argument, const void* memory) {
  if (bound_[argument] == memory) return;
  CheckDnnl(dnnl_memory_set_data_handle(arguments_[argument].memory, const_cast<void*>(memory)),
            "dnnl_memory_set_data_handle");
  bound_[argument] = memory;
}

void Primitive::Execute(std::initializer_list<const void*> memory, std::byte* scratchpad) {
  size_t argument = 0;
  for (const void* data : memory) Bind(argument++, data);
  Bind(argument, scratchpad);
  CheckDnnl(dnnl_primitive_execute(primitive_, stream_, arguments_.size(), arguments_.data()),
            "dnnl_primitive_execute");
  CheckDnnl(dnnl_stream_wait(stream_), "dnnl_stream_wait");
}

}  // namespace muster::kernels
