#include "services/coordinator/membership/member_directive.h"

#include <glog/logging.h>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace muster {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

uint32_t TagOfMessage(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

}  // namespace

// Serialized protobuf messages can be concatenated. So the message without the Prepare comes first.
// Then come the field tags and lengths of the Prepare and its plan, and the plan's bytes as they
// are.
grpc::ByteBuffer Serialize(const MemberDirective& told) {
  if (told.plan == nullptr) {
    const grpc::Slice bytes(told.directive.SerializeAsString());
    return grpc::ByteBuffer(&bytes, 1);
  }
  CHECK(told.directive.has_prepare() && !told.directive.prepare().has_plan());
  v1::Directive head = told.directive;
  head.clear_prepare();
  std::string front = head.SerializeAsString();
  {
    google::protobuf::io::StringOutputStream stream(&front);
    CodedOutputStream out(&stream);
    const auto plan_bytes = static_cast<uint32_t>(told.plan->size());
    const uint32_t plan_tag = TagOfMessage(v1::Prepare::kPlanFieldNumber);
    out.WriteTag(TagOfMessage(v1::Directive::kPrepareFieldNumber));
    out.WriteVarint32(static_cast<uint32_t>(CodedOutputStream::VarintSize32(plan_tag) +
                                            CodedOutputStream::VarintSize32(plan_bytes)) +
                      plan_bytes);
    out.WriteTag(plan_tag);
    out.WriteVarint32(plan_bytes);
  }
  auto* const shared = new std::shared_ptr<const std::string>(told.plan);
  const grpc::Slice slices[] = {
      grpc::Slice(front),
      grpc::Slice(
          const_cast<char*>((*shared)->data()), (*shared)->size(),
          [](void* owner) { delete static_cast<std::shared_ptr<const std::string>*>(owner); },
          shared)};
  return grpc::ByteBuffer(slices, 2);
}

v1::Directive Whole(const MemberDirective& told) {
  v1::Directive directive = told.directive;
  if (told.plan != nullptr) {
    CHECK(directive.mutable_prepare()->mutable_plan()->ParseFromString(*told.plan));
  }
  return directive;
}

}  // namespace muster
